"""Where oneDNN must be told what the CPU cannot do, it is told before torch is loaded."""

import sys

import pytest

from cfol_fast import cpu_features


@pytest.mark.parametrize(
    ("flags", "amx_works", "needs_help"),
    [
        ({"avx2"}, False, False),
        ({"avx512_bf16"}, False, False),
        # fp16 without AMX: a hypervisor hides half of the processor
        ({"avx512_bf16", "avx512_fp16"}, False, True),
        ({"avx512_bf16", "avx512_fp16", "amx_tile"}, False, True),
        ({"avx512_bf16", "avx512_fp16", "amx_tile"}, True, False),
    ],
)
def test_help_is_needed_where_the_tiles_cannot_be_used(monkeypatch, flags, amx_works, needs_help):
    monkeypatch.setattr(cpu_features, "cpu_flags", lambda: flags)
    monkeypatch.setattr(cpu_features, "amx_is_usable", lambda: amx_works)
    assert cpu_features.bfloat16_needs_help() == needs_help


def test_the_setting_is_made_before_torch_is_loaded(monkeypatch):
    monkeypatch.setattr(cpu_features, "bfloat16_needs_help", lambda: True)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.delitem(sys.modules, "torch")
    assert cpu_features.avoid_broken_bfloat16() is None
    assert cpu_features.os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_BF16"


def test_torch_loaded_before_the_setting_is_reported(monkeypatch):
    monkeypatch.setattr(cpu_features, "bfloat16_needs_help", lambda: True)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    assert "import cfol_fast before torch" in cpu_features.avoid_broken_bfloat16()


def test_the_users_own_setting_stands(monkeypatch):
    monkeypatch.setattr(cpu_features, "bfloat16_needs_help", lambda: True)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert cpu_features.avoid_broken_bfloat16() is None
    assert cpu_features.os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX2"


def test_this_machines_flags_are_read():
    assert isinstance(cpu_features.cpu_flags(), set)
    assert isinstance(cpu_features.amx_is_usable(), bool)
