"""The layouts by name; `base.checks.LAYOUTS` lists the names, too."""

from .indexed import IndexedLayout
from .layout import Layout
from .remap import RemapLayout
from .replicated import ReplicatedLayout

#: In the order in which they are listed to users.
LAYOUT_CLASSES: dict[str, type[Layout]] = {
    cls.name: cls for cls in (RemapLayout, ReplicatedLayout, IndexedLayout)
}
