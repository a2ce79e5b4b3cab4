"""Objects of buckets and web servers as inputs: how large they are, their names, their bytes.

Unlike the files of a dataset, an input has a size and a version, and is read from beginning to end.
"""

from jaxdata.storage.objects.contract import Facts, Place
from jaxdata.storage.objects.object_path import AnyPath, ObjectPath, any_path
from jaxdata.storage.objects.public_urls import bare_url, public_url
from jaxdata.storage.objects.ranged_file import RangedFile
from jaxdata.storage.objects.schemes import is_url, place_of, plain_path, read_object

__all__ = [
    "AnyPath",
    "Facts",
    "ObjectPath",
    "Place",
    "RangedFile",
    "any_path",
    "bare_url",
    "is_url",
    "place_of",
    "plain_path",
    "public_url",
    "read_object",
]
