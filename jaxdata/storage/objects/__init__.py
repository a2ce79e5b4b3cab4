"""Objects of buckets and web servers as inputs: how large they are, their names, their bytes.

`contract` says what a place of objects does; `bucket` is Google's and Amazon's (`bucket_settings`
says what the environment says of them), `web` a server, `memory` this process; `schemes` finds the
one of a URL, and `public_urls` leaves its secrets out. `ranged_file` makes a file of an object,
`object_path` what a path is for a file; `uploads` writes a large file. Datasets are read by
`storage.remote`: an input has a size and a version, and is read from beginning to end.
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
