"""What reading an archive of arrays (``.npz``) raises where it is damaged."""

from zipfile import BadZipFile
from zlib import error as ZlibError

# KeyError: of a member; RuntimeError: of a version or a cipher of zip; ValueError: of a header of numpy.
UNREADABLE = (OSError, EOFError, ValueError, KeyError, RuntimeError, BadZipFile, ZlibError)
