"""Windows that overlap: against a reference that visits every pixel."""

import pytest
import torch

from pipeline.dense.sliding import slide, starts, whole


def answer(images):
    """Logits that depend on the window: each pixel's value, and how far it is from the window's corner."""
    rows = torch.arange(images.shape[2]).view(1, 1, -1, 1).expand_as(images[:, :1])
    cols = torch.arange(images.shape[3]).view(1, 1, 1, -1).expand_as(images[:, :1])
    return torch.cat([images[:, :1], rows + images.sum(dim=(1, 2, 3), keepdim=True), cols * images[:, 1:2]], dim=1)


def reference(image, window, stride):
    """mmsegmentation's rule, pixel by pixel."""
    height, width = image.shape[1:]
    total, count = torch.zeros(3, height, width), torch.zeros(height, width)
    rows, cols = window
    num_rows = max(height - rows + stride - 1, 0) // stride + 1
    num_cols = max(width - cols + stride - 1, 0) // stride + 1
    for row in range(num_rows):
        for col in range(num_cols):
            bottom, right = min(row * stride + rows, height), min(col * stride + cols, width)
            top, left = max(bottom - rows, 0), max(right - cols, 0)
            logits = answer(image[None, :, top:bottom, left:right])[0]
            for y in range(top, bottom):
                for x in range(left, right):
                    total[:, y, x] += logits[:, y - top, x - left]
                    count[y, x] += 1
    return total / count


@pytest.mark.parametrize(
    ("size", "window", "stride"),
    [
        *(((8, 8), (8, 8), 5), ((8, 21), (8, 8), 5), ((19, 13), (8, 8), 5), ((12, 9), (4, 4), 4)),
        *(((11, 17), (8, 8), 1), ((9, 9), (8, 8), 8), ((17, 19), (4, 9), 3), ((17, 19), (9, 4), 3)),
    ],
)
def test_slide__images_no_smaller_than_a_window__averages_logits_where_windows_overlap(size, window, stride):
    image = torch.randn(2, *size, generator=torch.Generator().manual_seed(0))
    found = slide(answer, image, window, stride)
    torch.testing.assert_close(found, reference(image, window, stride))


@pytest.mark.parametrize("size", [(5, 8), (8, 3), (5, 20), (3, 3)])
def test_slide__image_smaller_than_a_window__is_padded_and_cut(size):
    image = torch.randn(2, *size, generator=torch.Generator().manual_seed(0))
    large = torch.zeros(2, max(8, size[0]), max(8, size[1]))
    large[:, : size[0], : size[1]] = image
    seen = []
    found = slide(lambda images: seen.append(images.shape[2:]) or answer(images), image, (8, 8), 5)
    torch.testing.assert_close(found, reference(large, (8, 8), 5)[:, : size[0], : size[1]])
    assert set(seen) == {(8, 8)}


def test_starts__as_published__two_windows_for_an_image_of_683_pixels():
    assert (starts(683, 512, 341), starts(512, 512, 341)) == ([0, 171], [0])
    assert starts(2048, 512, 341) == [0, 341, 682, 1023, 1364, 1536]


@pytest.mark.parametrize("size", [(8, 12), (7, 10), (1, 1), (12, 4)])
def test_whole__image_that_patches_do_not_divide__is_padded_and_cut(size):
    image = torch.randn(2, *size, generator=torch.Generator().manual_seed(0))
    seen = []
    found = whole(lambda images: seen.append(tuple(images.shape[2:])) or images.double(), image, (4, 6))
    assert torch.equal(found, image)
    assert seen == [(-(-size[0] // 4) * 4, -(-size[1] // 6) * 6)]
