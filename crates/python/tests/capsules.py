"""DLPack's structures by ctypes, written after the specification: what a consumer in C would see."""

import ctypes

python = ctypes.pythonapi
python.PyCapsule_GetName.restype = ctypes.c_char_p
python.PyCapsule_GetName.argtypes = [ctypes.py_object]
python.PyCapsule_GetPointer.restype = ctypes.c_void_p
python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_SetName.restype = ctypes.c_int
python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]

# Names that a capsule points to have to stay.
USED = {b"dltensor": b"used_dltensor", b"dltensor_versioned": b"used_dltensor_versioned"}

# ctypes releases the GIL while such a function runs.
Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Device(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int32),
        ("dtype", DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Legacy(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", Deleter)]


class Version(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("version", Version),
        ("context", ctypes.c_void_p),
        ("deleter", Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


def name(capsule):
    return python.PyCapsule_GetName(capsule)


def managed(capsule):
    """The structure in a capsule."""
    kind = {b"dltensor": Legacy, b"dltensor_versioned": Versioned}[name(capsule)]
    return kind.from_address(python.PyCapsule_GetPointer(capsule, name(capsule)))


def consume(capsule):
    """Takes the structure out of a capsule, as a consumer does. Returns its address and its deleter."""
    taken = managed(capsule)
    address, deleter = ctypes.addressof(taken), Deleter(ctypes.cast(taken.deleter, ctypes.c_void_p).value)
    assert python.PyCapsule_SetName(capsule, USED[name(capsule)]) == 0
    return address, deleter
