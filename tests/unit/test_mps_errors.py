"""CUDA's errors of MPS: which they are, and what the block under the traceback says."""

from __future__ import annotations

import pytest

from genv_jupyter.kernel.memory_errors import Failure, find
from genv_jupyter.kernel.mps_errors import MEANINGS, MpsErrorView, meaning_of
from genv_jupyter.kernel.oom import Facts
from tests.unit.test_memory_errors import ACCELERATOR, JAX, NUMBA, TORCH, enum

NAMES = {
    805: ("CUDA_ERROR_MPS_CONNECTION_FAILED", "cudaErrorMpsConnectionFailed"),
    806: ("CUDA_ERROR_MPS_RPC_FAILURE", "cudaErrorMpsRpcFailure"),
    807: ("CUDA_ERROR_MPS_SERVER_NOT_READY", "cudaErrorMpsServerNotReady"),
    808: ("CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", "cudaErrorMpsMaxClientsReached"),
    809: ("CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", "cudaErrorMpsMaxConnectionsReached"),
    810: ("CUDA_ERROR_MPS_CLIENT_TERMINATED", "cudaErrorMpsClientTerminated"),
}
DAEMON = "MPS client failed to connect to the MPS control daemon or the MPS server"


def errors(code: int) -> list[BaseException]:
    driver, runtime = NAMES[code]
    return [
        RuntimeError(enum("cuda.bindings.driver.CUresult", driver)),
        RuntimeError((enum("cuda.bindings.runtime.cudaError_t", runtime),)),
        NUMBA(f"[{code}] Call to cuInit results in {driver}"),
        JAX(f"INTERNAL: failed call to cuCtxCreate: {driver}: unknown error"),
        ACCELERATOR(f"CUDA error: something\nSearch for `{runtime}' in the documentation"),
        Exception(f"CUresult.{driver}"),
    ]


@pytest.mark.parametrize("code", NAMES)
def test_each_is_known_by_its_names(code: int) -> None:
    for error in errors(code):
        failure = find(error)
        assert failure is not None and failure.cause == "mps", error
        meaning = meaning_of(failure)
        assert meaning is not None and meaning.code == code, error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError(f"CUDA error: {DAEMON}"), 805),
        (RuntimeError(f"Unexpected error from cudaGetDeviceCount(). Error 805: {DAEMON}"), 805),
        (ACCELERATOR(f"CUDA error: {DAEMON}\nCUDA kernel errors might be reported later"), 805),
        (RuntimeError("CUDA error: the MPS server is not ready to accept new requests"), 807),
        (RuntimeError("CUDA error: MPS client has been terminated by the server"), 810),
    ],
)
def test_each_is_known_by_its_text(error: BaseException, code: int) -> None:
    failure = find(error)
    assert failure is not None and failure.cause == "mps"
    meaning = meaning_of(failure)
    assert meaning is not None and meaning.code == code


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("MPS backend out of memory (MPS allocated: 8 GB)"),  # Apple's
        TORCH("MPS backend out of memory (MPS allocated: 8 GB, other allocations: 1 GB)"),
        RuntimeError("Error 805: the printer is on fire"),
        ValueError("807"),
        Exception("connection terminated"),
    ],
)
def test_others_are_not(error: BaseException) -> None:
    assert find(error) is None


def test_full_memory_is_no_failure_of_mps() -> None:
    failure = find(RuntimeError(enum("cuda.bindings.driver.CUresult", "CUDA_ERROR_OUT_OF_MEMORY")))
    assert failure is not None and failure.cause == "memory"


@pytest.mark.parametrize("meaning", MEANINGS, ids=lambda meaning: str(meaning.code))
def test_the_block_says_what_it_means_and_what_helps(meaning: object) -> None:
    code = meaning.code  # type: ignore[attr-defined]
    view = MpsErrorView(Failure("CUDA", "mps", None, True, errors(code)[0]), Facts())
    said = " ".join(repr(view).split())
    assert f"NVIDIA MPS, CUDA's error {code} (CUDA)." in said
    assert meaning.means in said and meaning.cure in said  # type: ignore[attr-defined]
    assert max(map(len, repr(view).splitlines())) <= 80


def test_one_that_is_not_known_yet_is_no_reason_to_fail() -> None:
    failure = find(NUMBA("CUDA_ERROR_MPS_OF_THE_FUTURE"))
    assert failure is not None and meaning_of(failure) is None
    assert "Restart the kernel" in repr(MpsErrorView(failure, Facts()))
