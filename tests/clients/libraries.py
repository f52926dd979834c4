# SPDX-License-Identifier: Apache-2.0
"""cuBLAS, cuFFT, cuDNN and NCCL, each called by its own C interface: made, one call, ended. What they take of the GPU's memory
they get by the driver's own ways, which a program that uses them never sees."""

import ctypes

from cuda.pathfinder import load_nvidia_dynamic_lib

from client import GIB, MIB, gpu_bytes, hold, report

FLOAT = 0
CUFFT_C2C = 0x29
NCCL_FLOAT = 7
NCCL_SUM = 0


class Library:
    """Calls its functions and takes nothing but success."""

    def __init__(self, name):
        self._library = ctypes.CDLL(load_nvidia_dynamic_lib(name).abs_path)

    def __getattr__(self, function):
        call = getattr(self._library, function)

        def checked(*arguments):
            status = call(*arguments)
            if status:
                raise OSError(f"{function}: status {status}")

        return checked

    def made(self, function, kind=ctypes.c_void_p):
        """The handle that a function gives."""
        handle = kind()
        getattr(self, function)(ctypes.byref(handle))
        return handle


runtime = Library("cudart")


def free_and_total():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def used():
    free, total = free_and_total()
    return total - free


def memory(size):
    pointer = ctypes.c_void_p()
    runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size))
    return pointer


def blas_checks():
    before = used()
    blas = Library("cublas")
    handle = blas.made("cublasCreate_v2")
    yield "cuBLAS's memory is counted", used() - before >= 16 * MIB
    size = 256
    one, matrix = ctypes.byref(ctypes.c_float(1)), memory(4 * size * size)
    blas.cublasSgemm_v2(handle, 0, 0, size, size, size, one, matrix, size, matrix, size, one, matrix, size)
    runtime.cudaDeviceSynchronize()
    held = used()
    blas.cublasDestroy_v2(handle)
    yield "and goes when it ends", held - used() >= 16 * MIB


def fft_checks():
    fft = Library("cufft")
    size, batch = 1 << 20, 16
    before = used()
    plan = ctypes.c_int()
    fft.cufftPlan1d(ctypes.byref(plan), size, CUFFT_C2C, batch)
    signal = memory(8 * size * batch)
    yield "cuFFT's memory is counted", used() - before >= 2 * 8 * size * batch
    fft.cufftExecC2C(plan, signal, signal, -1)
    runtime.cudaDeviceSynchronize()
    held = used()
    fft.cufftDestroy(plan)
    yield "and goes with its plan", held - used() >= 8 * size * batch


def dnn_checks():
    """A convolution of 3x3, 16 channels to 16, by a way that needs a workspace."""
    dnn = Library("cudnn")
    implicit_precomputed_gemm = 1
    handle = dnn.made("cudnnCreate")
    images, results = (dnn.made("cudnnCreateTensorDescriptor") for _ in range(2))
    for tensor in (images, results):
        dnn.cudnnSetTensor4dDescriptor(tensor, 0, FLOAT, 8, 16, 64, 64)
    filters = dnn.made("cudnnCreateFilterDescriptor")
    dnn.cudnnSetFilter4dDescriptor(filters, FLOAT, 0, 16, 16, 3, 3)
    convolution = dnn.made("cudnnCreateConvolutionDescriptor")
    dnn.cudnnSetConvolution2dDescriptor(convolution, 1, 1, 1, 1, 1, 1, 1, FLOAT)
    size = ctypes.c_size_t()
    shapes = (images, filters, convolution, results)
    dnn.cudnnGetConvolutionForwardWorkspaceSize(handle, *shapes, implicit_precomputed_gemm, ctypes.byref(size))
    yield "cuDNN wants a workspace", size.value > 0
    one, zero = ctypes.byref(ctypes.c_float(1)), ctypes.byref(ctypes.c_float(0))
    x, w, y = (memory(4 * count) for count in (8 * 16 * 64 * 64, 16 * 16 * 9, 8 * 16 * 64 * 64))
    way = (implicit_precomputed_gemm, memory(size.value), size)
    dnn.cudnnConvolutionForward(handle, one, images, x, filters, w, convolution, *way, zero, results, y)
    runtime.cudaDeviceSynchronize()
    dnn.cudnnDestroy(handle)
    yield "cuDNN convolves", True


def nccl_checks():
    """A communicator of this one GPU."""
    nccl = Library("nccl")
    before = used()
    communicator = ctypes.c_void_p()
    nccl.ncclCommInitAll(ctypes.byref(communicator), 1, None)
    cells = memory(4 * MIB)
    yield "NCCL's memory is counted", used() - before >= 4 * MIB
    nccl.ncclAllReduce(cells, cells, ctypes.c_size_t(MIB), NCCL_FLOAT, NCCL_SUM, communicator, None)
    runtime.cudaDeviceSynchronize()
    nccl.ncclCommDestroy(communicator)
    yield "NCCL reduces", True


def refused_past_the_end(total):
    """cuFFT, whose plan wants more than there is."""
    fft = Library("cufft")
    plan, size = ctypes.c_int(), 1 << 27
    batch = total // (8 * size) + 1
    try:
        fft.cufftPlan1d(ctypes.byref(plan), size, CUFFT_C2C, batch)
    except OSError as error:
        return str(error)
    return ""


def main():
    total = gpu_bytes()
    checks = {"cudaMemGetInfo says the GPU's size": free_and_total()[1] == total}
    for of_library in (blas_checks(), fft_checks(), dnn_checks(), nccl_checks()):
        checks.update(of_library)
    held = memory(GIB)
    hold()
    runtime.cudaFree(held)
    error = refused_past_the_end(total)
    checks["a plan past the end is refused"] = error != ""
    report(checks, error)


if __name__ == "__main__":
    main()
