# SPDX-License-Identifier: Apache-2.0
"""CUDA's own Python packages: cuda.bindings, which is the C interface, and cuda.core, with kernels that NVRTC compiles."""

import ctypes

from cuda.bindings import driver, runtime
from cuda.core import Device, DeviceMemoryResource, LaunchConfig, Program, ProgramOptions, VirtualMemoryResource, launch

from client import GIB, MIB, gpu_bytes, hold, report

SOURCE = 'extern "C" __global__ void add_one(float* x) { x[threadIdx.x] += 1; }'


def done(answer):
    """What a call of cuda.bindings gave; it must have succeeded."""
    status, *given = answer
    if status.value:
        raise RuntimeError(f"status {status!r}")
    return given[0] if len(given) == 1 else given


def failure(make):
    """What is said of a call that does not succeed, or nothing."""
    try:
        make()
    except Exception as error:  # each of the packages has its own kind
        return str(error)
    return ""


def binding_checks(total, kernel):
    """The driver's calls, a graph by capture, and the runtime's beside them."""
    device = done(driver.cuDeviceGet(0))
    free, seen = done(driver.cuMemGetInfo())
    yield "bindings: the size", seen == total == done(driver.cuDeviceTotalMem(device)) == done(runtime.cudaMemGetInfo())[1]
    stream = done(driver.cuStreamCreate(0))
    plain, ordered = done(driver.cuMemAlloc(GIB)), done(driver.cuMemAllocAsync(MIB, stream))
    # What the driver took for the process is measured meanwhile, and was only estimated before.
    yield "bindings: free sank by 1 GiB", free - done(driver.cuMemGetInfo())[0] >= GIB - 64 * MIB
    out_of_memory = driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    yield "bindings: 1 GiB more than all is refused", driver.cuMemAlloc(total)[0] == out_of_memory
    yield "bindings: and in a stream's order", driver.cuMemAllocAsync(total, stream)[0] == out_of_memory
    refused = runtime.cudaMalloc(total)[0]
    yield "bindings: and by the runtime", refused == runtime.cudaError_t.cudaErrorMemoryAllocation
    arguments = ((plain,), (ctypes.c_void_p,))
    done(driver.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, arguments, 0))
    done(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    done(driver.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, arguments, 0))
    graph = done(driver.cuStreamEndCapture(stream))
    runs = done(driver.cuGraphInstantiate(graph, 0))
    done(driver.cuGraphLaunch(runs, stream))
    done(driver.cuMemFreeAsync(ordered, stream))
    done(driver.cuStreamSynchronize(stream))
    done(driver.cuMemFree(plain))
    yield "bindings: kernels and a graph are done", True


def core_checks(device, kernel, total):
    stream = device.create_stream()
    pool = DeviceMemoryResource(device)
    mapped = VirtualMemoryResource(device)
    for name, source in (("a pool", pool), ("mapped memory", mapped)):
        held = source.allocate(GIB, stream=stream)
        launch(stream, LaunchConfig(grid=1, block=32), kernel, held.handle)
        stream.sync()
        error = failure(lambda source=source: source.allocate(total, stream=stream))
        yield f"core: 1 GiB more than all is refused, of {name}", "OUT_OF_MEMORY" in error
        yield f"core: {name} has what it lends", held.size >= GIB
        held.close(stream)
    stream.sync()


def main():
    total = gpu_bytes()
    device = Device(0)
    device.set_current()
    code = Program(SOURCE, "c++", ProgramOptions(arch=f"sm_{device.arch}")).compile("cubin")
    kernel = code.get_kernel("add_one")
    checks = dict(binding_checks(total, done(driver.cuKernelGetFunction(kernel.handle))))
    checks.update(core_checks(device, kernel, total))
    held = done(driver.cuMemAlloc(GIB))
    error = failure(lambda: done(driver.cuMemAlloc(total)))
    hold()
    done(driver.cuMemFree(held))
    report(checks, error)


if __name__ == "__main__":
    main()
