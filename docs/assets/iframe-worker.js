// A browser starts no Worker in a page that is opened from disk. The search of the manual then runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.documentElement.append(this.frame)
      const inside = this.frame.contentWindow
      inside.postMessage = data => {
        const event = new MessageEvent("message", { data })
        this.dispatchEvent(event)
        if (this.onmessage) this.onmessage(event)
      }
      inside.importScripts = (...urls) => Promise.all(urls.map(each => this.load(new URL(each, url))))
      this.ready = this.load(url)
    }

    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.frame.contentDocument.createElement("script")
        script.src = url
        script.onload = resolve
        script.onerror = reject
        this.frame.contentDocument.documentElement.append(script)
      })
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
