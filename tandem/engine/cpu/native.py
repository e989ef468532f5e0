"""The native code's face: its structs, field by field as in interface.h, and its functions."""

import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, c_float, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import ClassVar

LayerRan = CFUNCTYPE(None, c_int32)
PANEL = 16
"""Outputs of a panel of packed weights."""


class Layer(Structure):
    """Addresses of one layer's weights; None where it has no such weights."""

    _fields_: ClassVar = [
        (name, c_void_p)
        for name in (
            "attn_norm",
            "qkv",
            "qkv_bias",
            "q_norm",
            "k_norm",
            "attn_out",
            "ffn_norm",
            "gate_up",
            "down",
        )
    ]


class Stage(Structure):
    """What stays the same from run to run."""

    _fields_: ClassVar = [
        *((name, c_int32) for name in ("hidden", "intermediate", "heads", "kv_heads", "head_dim", "padded_vocab")),
        ("page_size", c_int32),
        ("window", c_int32),
        ("eps", c_float),
        ("layers", c_int32),
        ("layer", POINTER(Layer)),
        *((name, c_void_p) for name in ("embedding", "norm", "head", "cos", "sin", "pages")),
        ("layer_items", c_int64),
        ("block_items", c_int64),
    ]


class Batch(Structure):
    """One plan."""

    _fields_: ClassVar = [
        *((name, c_int32) for name in ("rows", "tokens", "sampled")),
        *((name, c_void_p) for name in ("first_token", "start", "first_page", "pages", "ids", "sampled_at")),
        ("hidden", c_void_p),
        ("logits", c_void_p),
        ("layer_ran", LayerRan),
    ]


class Native:
    """One build, loaded. Its functions let other Python threads run meanwhile."""

    def __init__(self, path: Path) -> None:
        """Raises OSError when it cannot be loaded."""
        library = ctypes.CDLL(str(path))
        self.pack = library.tandem_pack
        self.pack.argtypes = (c_void_p, c_void_p, c_int32, c_int32, c_void_p, c_int32)
        self.pack.restype = None
        self.open = library.tandem_open
        self.open.argtypes = (c_int32, c_int32, c_void_p, c_int32, c_int32)
        self.open.restype = c_void_p
        self.close = library.tandem_close
        self.close.argtypes = (c_void_p,)
        self.close.restype = None
        self.part = library.tandem_part
        self.part.argtypes = (c_void_p,)
        self.part.restype = c_int32
        self.run = library.tandem_run
        self.run.argtypes = (c_void_p, POINTER(Stage), POINTER(Batch))
        self.run.restype = c_int32
