"""What killed processes left below the folders of a conversion."""

from __future__ import annotations

from dataclasses import dataclass

from jaxdata.format.manifest import MANIFEST, read_manifest
from jaxdata.format.storage import Store
from jaxdata.format.unfinished import UnfinishedJob


@dataclass(frozen=True)
class Leftovers:
    """Files of a conversion that belong to no source.

    Attributes:
        store: the dataset.
        unfinished: what is known of units that are done.
        outputs: the sources that the conversion may write.
    """

    store: Store
    unfinished: UnfinishedJob
    outputs: list[str]

    def clean(self) -> None:
        """Remove files that only a conversion in progress needs."""
        self.unfinished.end()
        self.sweep()

    def sweep(self) -> None:
        """Remove what workers were writing; none may be at work."""
        for folder in {self.unfinished.folder, *self.outputs}:
            self.store.sweep(f"{folder}/")

    def discard_shards(self, named: set[str]) -> None:
        """Remove shards but those named here or in the manifest: another cut has other names."""
        kept = named | self._published()
        for folder in self.outputs:
            for name in self.store.list(f"{folder}/"):
                own = name.endswith(".array_record") and name.rpartition("/")[0] == folder
                if own and name not in kept:
                    self.store.delete(name)

    def _published(self) -> set[str]:
        if self.store.read(MANIFEST) is None:
            return set()
        sources = read_manifest(self.store).sources.values()
        return {shard.name for entry in sources for shard in entry.all_shards}
