"""What an evaluation needs of a machine. On a cluster its job asks for that much; nothing here changes a number."""

from pydantic import Field

from pipeline.core.config import Strict


class Needs(Strict):
    gpu: bool = True
    """Whether the job needs a GPU; without, it runs in the partition for CPU jobs."""
    memory_gb: int | None = Field(None, ge=1)
    """Memory of the job, in GB; null: what the site gives a process."""
    hours: float = Field(1.0, gt=0, description="time limit of the job")

    def __or__(self, other: "Needs") -> "Needs":
        """Enough for both, one after the other."""
        memory = [amount for amount in (self.memory_gb, other.memory_gb) if amount]
        return Needs(
            gpu=self.gpu or other.gpu,
            memory_gb=max(memory, default=None),
            hours=self.hours + other.hours,
        )
