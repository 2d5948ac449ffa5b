"""``.pt`` files as ``torch.save`` writes them, and the fields that SGLang's recorder puts there, without PyTorch."""

import io
import pickle
import sys
import types
import zipfile

import numpy as np

KINDS = {"int64": "LongStorage", "int32": "IntStorage", "float32": "FloatStorage", "bool": "BoolStorage"}


def save_pt(path, content, compression=zipfile.ZIP_STORED):
    """Write a tree of plain values and numpy arrays as tensors."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")

    def _rebuild_tensor_v2(*given):
        raise AssertionError("nothing is called")

    utils._rebuild_tensor_v2 = _rebuild_tensor_v2
    _rebuild_tensor_v2.__module__, _rebuild_tensor_v2.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    for kind in KINDS.values():
        setattr(torch, kind, type(kind, (), {"__module__": "torch"}))
    torch._utils = utils
    storages, stream = [], io.BytesIO()

    class Storage:
        def __init__(self, array):
            self.array = array

    class Writer(pickle.Pickler):
        def persistent_id(self, value):
            if not isinstance(value, Storage):
                return None
            storages.append(value.array)
            kind = getattr(torch, KINDS[value.array.dtype.name])
            return "storage", kind, str(len(storages) - 1), "cpu", value.array.size

        def reducer_override(self, value):
            if not isinstance(value, np.ndarray):
                return NotImplemented
            strides = tuple(step // value.itemsize for step in value.strides)
            last = sum((n - 1) * step for n, step in zip(value.shape, strides, strict=True))
            if value.size and last != value.size - 1:
                return self.reducer_override(np.ascontiguousarray(value))
            return _rebuild_tensor_v2, (Storage(value.ravel(order="K")), 0, value.shape, strides, False, {})

    known = {name: sys.modules.get(name) for name in ("torch", "torch._utils")}
    sys.modules.update({"torch": torch, "torch._utils": utils})
    try:
        Writer(stream, protocol=2).dump(content)
    finally:
        for name, module in known.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module
    return zip_pt(path, stream.getvalue(), [array.tobytes() for array in storages], compression)


def zip_pt(path, pickled, storages=(), compression=zipfile.ZIP_STORED):
    """An archive around a pickle."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr(f"{path.stem}/data.pkl", pickled)
        archive.writestr(f"{path.stem}/byteorder", "little")
        for key, content in enumerate(storages):
            archive.writestr(f"{path.stem}/data/{key}", content)
    return path


def tensors(value):
    """A tree of a mirror file, its tensors as arrays."""
    if isinstance(value, dict) and "__tensor__" in value:
        return np.array(value["data"], value["__tensor__"]).reshape(value["shape"])
    if isinstance(value, dict):
        return {key: tensors(each) for key, each in value.items()}
    return [tensors(each) for each in value] if isinstance(value, list) else value
