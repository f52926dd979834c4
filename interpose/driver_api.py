# SPDX-License-Identifier: Apache-2.0
"""THE TABLE: every function of the CUDA driver API and what the preloaded library does with it.

One row per base name: `cuMemAlloc` stands for cuMemAlloc, cuMemAlloc_v2 and each variant that a
future header brings, and for their per-thread twins. The class of a row is its policy. Signatures,
variants and versions are in NVIDIA's headers and nowhere else; generate.py joins the two.

A policy other than Pass and Overhead means that a hook exists: one C++ function per variant in namespace
`hook`, found by the linker under the driver's own name. A Pass or Overhead row is exported as one jump to
the driver. A Pass row's reason is given where a reader could ask why it is not counted or gated.

Rows stand in the order and groups of cuda.h. How to add one: README.md.
"""


class Entry:
    """A row. `reason` says why the policy is right where the name alone does not."""

    def __init__(self, reason=""):
        self.reason = reason


class Pass(Entry):
    """Goes to the driver as it came: one jump, no code of ours."""


class Overhead(Entry):
    """Takes device memory that is not counted before the driver tells: goes to the driver as it came, which
    is not refused at the quota, and is charged to the slice once the broker has measured it."""


class Charge(Entry):
    """Takes device memory: reserved in the slice's ledger before the driver is asked,
    CUDA_ERROR_OUT_OF_MEMORY past the quota, given back if the driver refuses."""


class Measure(Entry):
    """Makes the driver take or give back memory that nobody asked it for: charged before it is asked
    with what can be told, at least a granule; CUDA_ERROR_OUT_OF_MEMORY past the quota; the broker
    measures it right after."""


class Release(Entry):
    """Gives device memory back: the driver first, then the ledger."""


class Hold(Entry):
    """Makes, shares or finds again something whose life decides when a charge ends (a mapping, a
    second handle, a binding, a pool), or that another process was charged for (an import). Charges nothing."""


class Bar(Entry):
    """Sends memory to a GPU: refused for one that is off limits, else as it came."""


class Report(Entry):
    """Says how much memory there is: the slice is shown, never more than the driver has."""


class Launch(Entry):
    """Submits work to the GPU: waits at the slice's gate. No lock, no heap, no system call while
    the gate is open."""


class Lookup(Entry):
    """Hands out addresses of driver functions: the driver is asked first, and what it found is
    replaced by our export of that very version and stream mode."""


class Lifecycle(Entry):
    """Begins or ends what the library keeps books about: the process's membership, a context, a
    stream."""


class Capture(Entry):
    """Begins or ends the capture of a stream: a count is kept, so that streams are asked for their
    status only while one may be capturing."""


# Reasons that several rows share
HOST = "host memory; not VRAM"
DEVICE_LIST = "the runtime checks the device list against the driver's own; never altered"
WAITS = "waits or asks; never gated, so that what holds a turn can drain"
STREAM_OP = "gating one stream's signal could stop what another stream waits for"
GRAPH_MEMORY = "what the allocation nodes need is noted for launches; charged here if this uploads the graph"

# Error Handling
cuGetErrorString = Pass()
cuGetErrorName = Pass()

# Initialization
cuInit = Lifecycle()

# Version Management
cuDriverGetVersion = Pass()

# Device Management
cuDeviceGet = Pass()
cuDeviceGetCount = Pass(DEVICE_LIST)
cuDeviceGetName = Pass()
cuDeviceGetUuid = Pass(DEVICE_LIST)
cuDeviceGetLuid = Pass()
cuDeviceTotalMem = Report()
cuDeviceGetTexture1DLinearMaxWidth = Pass()
cuDeviceGetAttribute = Pass()
cuDeviceGetHostAtomicCapabilities = Pass()
cuDeviceGetNvSciSyncAttributes = Pass()
cuDeviceSetMemPool = Pass("chooses the pool that cuMemAllocAsync charges; asked for there")
cuDeviceGetMemPool = Pass()
cuDeviceGetDefaultMemPool = Pass()
cuDeviceGetExecAffinitySupport = Pass()
cuFlushGPUDirectRDMAWrites = Pass()

# Device Management [DEPRECATED]
cuDeviceGetProperties = Pass("CUdevprop has limits of a block, no amount of memory")
cuDeviceComputeCapability = Pass()

# Primary Context Management
cuDevicePrimaryCtxRetain = Lifecycle()
cuDevicePrimaryCtxRelease = Lifecycle()
cuDevicePrimaryCtxSetFlags = Pass()
cuDevicePrimaryCtxGetState = Pass()
cuDevicePrimaryCtxReset = Lifecycle()

# Context Management
cuCtxCreate = Lifecycle()
cuCtxDestroy = Lifecycle()
cuCtxPushCurrent = Pass()
cuCtxPopCurrent = Pass()
cuCtxSetCurrent = Pass()
cuCtxGetCurrent = Pass()
cuCtxGetDevice = Pass()
cuCtxGetFlags = Pass()
cuCtxSetFlags = Pass()
cuCtxGetId = Pass()
cuCtxSynchronize = Pass(WAITS)
cuCtxSetLimit = Measure("stacks, printf and heap buffers")
cuCtxGetLimit = Pass()
cuCtxGetCacheConfig = Pass()
cuCtxSetCacheConfig = Pass()
cuCtxGetApiVersion = Pass()
cuCtxGetStreamPriorityRange = Pass()
cuCtxResetPersistingL2Cache = Pass()
cuCtxGetExecAffinity = Pass()
cuCtxRecordEvent = Pass()
cuCtxWaitEvent = Pass()

# Context Management [DEPRECATED]
cuCtxAttach = Pass("one more use of a context that was counted when created")
cuCtxDetach = Lifecycle()
cuCtxGetSharedMemConfig = Pass()
cuCtxSetSharedMemConfig = Pass()

# Module Management
cuModuleLoad = Measure()
cuModuleLoadData = Measure()
cuModuleLoadDataEx = Measure()
cuModuleLoadFatBinary = Measure()
cuModuleUnload = Measure()
cuModuleGetLoadingMode = Pass()
cuModuleGetFunction = Pass("may load lazily what the module's row has charged; a rest is found as overhead")
cuModuleGetFunctionCount = Pass()
cuModuleEnumerateFunctions = Pass()
cuModuleGetGlobal = Measure("with lazy loading a variable takes its memory when it is first asked for")
cuLinkCreate = Pass()
cuLinkAddData = Pass()
cuLinkAddFile = Pass()
cuLinkComplete = Pass("the result lies in host memory until it is loaded")
cuLinkDestroy = Pass()

# Module Management [DEPRECATED]
cuModuleGetTexRef = Pass()
cuModuleGetSurfRef = Pass()

# Library Management
cuLibraryLoadData = Measure()
cuLibraryLoadFromFile = Measure()
cuLibraryUnload = Measure()
cuLibraryGetKernel = Pass()
cuLibraryGetKernelCount = Pass()
cuLibraryEnumerateKernels = Pass()
cuLibraryGetModule = Pass()
cuKernelGetFunction = Pass("as cuModuleGetFunction")
cuKernelGetLibrary = Pass()
cuLibraryGetGlobal = Measure("as cuModuleGetGlobal")
cuLibraryGetManaged = Pass("managed variables come with their module, and are not listed under the process")
cuLibraryGetUnifiedFunction = Pass()
cuKernelGetAttribute = Pass()
cuKernelSetAttribute = Pass()
cuKernelSetCacheConfig = Pass()
cuKernelGetName = Pass()
cuKernelGetParamInfo = Pass()
cuKernelGetParamCount = Pass()

# Memory Management
cuMemGetInfo = Report()
cuMemAlloc = Charge()
cuMemAllocPitch = Charge()
cuMemFree = Release()
cuMemGetAddressRange = Pass("of an allocation the caller owns")
cuMemAllocHost = Pass(HOST)
cuMemFreeHost = Pass()
cuMemHostAlloc = Pass(HOST)
cuMemHostGetDevicePointer = Pass("an address of host memory")
cuMemHostGetFlags = Pass()
cuMemAllocManaged = Charge()
cuDeviceRegisterAsyncNotification = Pass("tells of the driver's own memory pressure, not of the slice's")
cuDeviceUnregisterAsyncNotification = Pass()
cuDeviceGetByPCIBusId = Pass()
cuDeviceGetPCIBusId = Pass(DEVICE_LIST)
cuIpcGetEventHandle = Pass()
cuIpcOpenEventHandle = Pass()
cuIpcGetMemHandle = Pass("the memory stays charged here, whoever opens it")
cuIpcOpenMemHandle = Pass("memory of another process, which is charged for it")
cuIpcCloseMemHandle = Pass()
cuMemHostRegister = Pass(HOST)
cuMemHostUnregister = Pass()
cuMemcpy = Pass("copy engines are not gated; as every copy below")
cuMemcpyPeer = Pass()
cuMemcpyHtoD = Pass()
cuMemcpyDtoH = Pass()
cuMemcpyDtoD = Pass()
cuMemcpyDtoA = Pass()
cuMemcpyAtoD = Pass()
cuMemcpyHtoA = Pass()
cuMemcpyAtoH = Pass()
cuMemcpyAtoA = Pass()
cuMemcpy2D = Pass()
cuMemcpy2DUnaligned = Pass()
cuMemcpy3D = Pass()
cuMemcpy3DPeer = Pass()
cuMemcpyAsync = Pass()
cuMemcpyPeerAsync = Pass()
cuMemcpyHtoDAsync = Pass()
cuMemcpyDtoHAsync = Pass()
cuMemcpyDtoDAsync = Pass()
cuMemcpyHtoAAsync = Pass()
cuMemcpyAtoHAsync = Pass()
cuMemcpy2DAsync = Pass()
cuMemcpy3DAsync = Pass()
cuMemcpy3DPeerAsync = Pass()
cuMemcpyBatchAsync = Pass()
cuMemcpy3DBatchAsync = Pass()
cuMemcpyWithAttributesAsync = Pass()
cuMemcpy3DWithAttributesAsync = Pass()
cuMemsetD8 = Launch()
cuMemsetD16 = Launch()
cuMemsetD32 = Launch()
cuMemsetD2D8 = Launch()
cuMemsetD2D16 = Launch()
cuMemsetD2D32 = Launch()
cuMemsetD8Async = Launch()
cuMemsetD16Async = Launch()
cuMemsetD32Async = Launch()
cuMemsetD2D8Async = Launch()
cuMemsetD2D16Async = Launch()
cuMemsetD2D32Async = Launch()
cuArrayCreate = Charge()
cuArrayGetDescriptor = Pass()
cuArrayGetSparseProperties = Pass()
cuMipmappedArrayGetSparseProperties = Pass()
cuArrayGetMemoryRequirements = Pass()
cuMipmappedArrayGetMemoryRequirements = Pass()
cuArrayGetPlane = Pass("a part of an array that is charged")
cuArrayDestroy = Release()
cuArray3DCreate = Charge()
cuArray3DGetDescriptor = Pass()
cuMipmappedArrayCreate = Charge()
cuMipmappedArrayGetLevel = Pass("a part of an array that is charged")
cuMipmappedArrayDestroy = Release()
cuMemGetHandleForAddressRange = Pass("another name of memory that is charged")
cuMemBatchDecompressAsync = Pass("runs on the decompression engine, which is not gated")

# Virtual Memory Management
cuMemAddressReserve = Pass("addresses, no memory")
cuMemAddressFree = Pass()
cuMemCreate = Charge()
cuMemRelease = Release()
cuMemMap = Hold()
cuMemMapArrayAsync = Hold()
cuMemUnmap = Release()
cuMemSetAccess = Pass()
cuMemGetAccess = Pass()
cuMemExportToShareableHandle = Pass("the memory stays charged here, whoever imports it")
cuMemImportFromShareableHandle = Hold()
cuMemGetAllocationGranularity = Pass()
cuMemGetAllocationPropertiesFromHandle = Pass()
cuMemRetainAllocationHandle = Hold()

# Stream Ordered Memory Allocator
cuMemFreeAsync = Release()
cuMemAllocAsync = Charge()
cuMemPoolTrimTo = Release()
cuMemPoolSetAttribute = Pass("changes when memory returns; the ledger reads that from the pool")
cuMemPoolGetAttribute = Pass("amounts of one pool, which the slice owns")
cuMemPoolSetAccess = Pass()
cuMemPoolGetAccess = Pass()
cuMemPoolCreate = Hold()
cuMemPoolDestroy = Release()
cuMemGetDefaultMemPool = Pass()
cuMemGetMemPool = Pass()
cuMemSetMemPool = Pass("chooses the pool that cuMemAllocAsync charges; asked for there")
cuMemAllocFromPoolAsync = Charge()
cuMemPoolExportToShareableHandle = Pass("the pool stays charged here, whoever imports it")
cuMemPoolImportFromShareableHandle = Hold()
cuMemPoolExportPointer = Pass()
cuMemPoolImportPointer = Pass("memory of the pool that exported it, whose process is charged")

# Multicast Object Management
cuMulticastCreate = Pass("has no memory of its own; what is bound to it was charged when created")
cuMulticastAddDevice = Pass()
cuMulticastBindMem = Hold()
cuMulticastBindAddr = Hold()
cuMulticastUnbind = Release()
cuMulticastGetGranularity = Pass()

# Fabric Clique Information
cuDeviceGetFabricClusterUuid = Pass()
cuDeviceGetCliqueCount = Pass()
cuDeviceGetCliqueInfo = Pass()

# Logical Endpoint
cuLogicalEndpointIdReserve = Pass()
cuLogicalEndpointIdRelease = Pass()
cuLogicalEndpointCreate = Pass("has no memory of its own; what is bound to it was charged when created")
cuLogicalEndpointAddDevice = Pass()
cuLogicalEndpointDestroy = Release()
cuLogicalEndpointBindAddr = Hold()
cuLogicalEndpointBindMem = Hold()
cuLogicalEndpointUnbind = Release()
cuLogicalEndpointExport = Pass()
cuLogicalEndpointImport = Pass()
cuLogicalEndpointGetLimits = Pass()
cuLogicalEndpointQuery = Pass()

# Fabric Copy
cuFabricCpyBatchAsync = Pass("copy engines are not gated")

# Unified Addressing
cuPointerGetAttribute = Pass()
cuMemPrefetchAsync = Bar("managed memory, which is charged in full when allocated")
cuMemAdvise = Bar()
cuMemPrefetchBatchAsync = Bar()
cuMemDiscardBatchAsync = Pass("the pages stay charged: they may come back")
cuMemDiscardAndPrefetchBatchAsync = Bar()
cuMemGetLocationInfo = Pass()
cuMemRangeGetAttribute = Pass()
cuMemRangeGetAttributes = Pass()
cuPointerSetAttribute = Pass()
cuPointerGetAttributes = Pass()

# Stream Management
cuStreamCreate = Lifecycle("joins the books at its first launch, unless threads have noted its handle before")
cuStreamCreateWithPriority = Lifecycle()
cuStreamBeginCaptureToCig = Capture()
cuStreamEndCaptureToCig = Capture()
cuStreamGetPriority = Pass()
cuStreamGetDevice = Pass()
cuStreamGetFlags = Pass()
cuStreamGetId = Pass()
cuStreamGetCtx = Pass()
cuStreamWaitEvent = Pass("orders work, submits none")
cuStreamAddCallback = Pass("runs on the CPU; gating it could stop what a running kernel waits for")
cuStreamBeginCapture = Capture()
cuStreamBeginRecaptureToGraph = Capture()
cuStreamBeginCaptureToGraph = Capture()
cuThreadExchangeStreamCaptureMode = Pass("our own driver calls rely on it; nothing to keep")
cuStreamEndCapture = Capture()
cuStreamIsCapturing = Pass()
cuStreamGetCaptureInfo = Pass()
cuStreamUpdateCaptureDependencies = Pass()
cuStreamAttachMemAsync = Pass()
cuStreamQuery = Pass(WAITS)
cuStreamSynchronize = Pass(WAITS)
cuStreamDestroy = Lifecycle()
cuStreamCopyAttributes = Pass()
cuStreamGetAttribute = Pass()
cuStreamSetAttribute = Pass()

# Event Management
cuEventCreate = Pass()
cuEventRecord = Pass("orders work, submits none")
cuEventRecordWithFlags = Pass()
cuEventQuery = Pass(WAITS)
cuEventSynchronize = Pass(WAITS)
cuEventDestroy = Pass()
cuEventElapsedTime = Pass()

# External Resource Interoperability
cuImportExternalMemory = Pass("who made it pays: CUDA's is charged there, a graphics API's is overhead of its process")
cuExternalMemoryGetMappedBuffer = Pass("an address of what was imported")
cuExternalMemoryGetMappedMipmappedArray = Pass("as cuExternalMemoryGetMappedBuffer")
cuDestroyExternalMemory = Pass()
cuImportExternalSemaphore = Pass()
cuSignalExternalSemaphoresAsync = Pass()
cuWaitExternalSemaphoresAsync = Pass()
cuDestroyExternalSemaphore = Pass()

# Stream Memory Operations
cuStreamWaitValue32 = Pass(STREAM_OP)
cuStreamWaitValue64 = Pass(STREAM_OP)
cuStreamWriteValue32 = Pass(STREAM_OP)
cuStreamWriteValue64 = Pass(STREAM_OP)
cuStreamBatchMemOp = Pass(STREAM_OP)

# Execution Control
cuFuncGetAttribute = Pass()
cuFuncSetAttribute = Pass("changes how a launch runs, takes nothing")
cuFuncSetCacheConfig = Pass()
cuFuncGetModule = Pass()
cuFuncGetName = Pass()
cuFuncGetParamInfo = Pass()
cuFuncGetParamCount = Pass()
cuFuncIsLoaded = Pass()
cuFuncLoad = Measure()
cuLaunchKernel = Launch()
cuLaunchKernelEx = Launch()
cuLaunchCooperativeKernel = Launch()
cuLaunchHostFunc = Pass("runs on the CPU; gating it could stop what a running kernel waits for")

# Execution Control [DEPRECATED]
cuFuncSetBlockShape = Pass()
cuFuncSetSharedSize = Pass()
cuParamSetSize = Pass()
cuParamSeti = Pass()
cuParamSetf = Pass()
cuParamSetv = Pass()
cuLaunch = Launch()
cuLaunchGrid = Launch()
cuLaunchGridAsync = Launch()
cuLaunchCooperativeKernelMultiDevice = Launch()
cuParamSetTexRef = Pass()
cuFuncSetSharedMemConfig = Pass()

# Graph Management
cuGraphCreate = Pass()
cuGraphAddKernelNode = Pass()
cuGraphKernelNodeGetParams = Pass()
cuGraphKernelNodeSetParams = Pass()
cuGraphAddMemcpyNode = Pass()
cuGraphMemcpyNodeGetParams = Pass()
cuGraphMemcpyNodeSetParams = Pass()
cuGraphAddMemsetNode = Pass()
cuGraphMemsetNodeGetParams = Pass()
cuGraphMemsetNodeSetParams = Pass()
cuGraphAddHostNode = Pass()
cuGraphHostNodeGetParams = Pass()
cuGraphHostNodeSetParams = Pass()
cuGraphAddChildGraphNode = Pass()
cuGraphChildGraphNodeGetGraph = Pass()
cuGraphAddEmptyNode = Pass()
cuGraphAddEventRecordNode = Pass()
cuGraphEventRecordNodeGetEvent = Pass()
cuGraphEventRecordNodeSetEvent = Pass()
cuGraphAddEventWaitNode = Pass()
cuGraphEventWaitNodeGetEvent = Pass()
cuGraphEventWaitNodeSetEvent = Pass()
cuGraphAddExternalSemaphoresSignalNode = Pass()
cuGraphExternalSemaphoresSignalNodeGetParams = Pass()
cuGraphExternalSemaphoresSignalNodeSetParams = Pass()
cuGraphAddExternalSemaphoresWaitNode = Pass()
cuGraphExternalSemaphoresWaitNodeGetParams = Pass()
cuGraphExternalSemaphoresWaitNodeSetParams = Pass()
cuGraphAddBatchMemOpNode = Pass()
cuGraphBatchMemOpNodeGetParams = Pass()
cuGraphBatchMemOpNodeSetParams = Pass()
cuGraphExecBatchMemOpNodeSetParams = Pass()
cuGraphAddMemAllocNode = Pass("takes nothing: the driver allocates when the graph is launched")
cuGraphMemAllocNodeGetParams = Pass()
cuGraphAddMemFreeNode = Pass("frees to the graph memory, which stays charged until it is trimmed")
cuGraphMemFreeNodeGetParams = Pass()
cuDeviceGraphMemTrim = Release()
cuDeviceGetGraphMemAttribute = Pass("shows the graph memory of this process alone")
cuDeviceSetGraphMemAttribute = Pass()
cuGraphClone = Pass()
cuGraphNodeFindInClone = Pass()
cuGraphNodeGetType = Pass()
cuGraphNodeGetContainingGraph = Pass()
cuGraphNodeGetLocalId = Pass()
cuGraphNodeGetToolsId = Pass()
cuGraphGetId = Pass()
cuGraphExecGetId = Pass()
cuGraphGetNodes = Pass()
cuGraphGetRootNodes = Pass()
cuGraphGetEdges = Pass()
cuGraphNodeGetDependencies = Pass()
cuGraphNodeGetDependentNodes = Pass()
cuGraphAddDependencies = Pass()
cuGraphRemoveDependencies = Pass()
cuGraphDestroyNode = Pass()
cuGraphInstantiate = Charge(GRAPH_MEMORY)
cuGraphInstantiateWithFlags = Charge(GRAPH_MEMORY)
cuGraphInstantiateWithParams = Charge(GRAPH_MEMORY)
cuGraphExecGetFlags = Pass()
cuGraphExecKernelNodeSetParams = Pass()
cuGraphExecMemcpyNodeSetParams = Pass()
cuGraphExecMemsetNodeSetParams = Pass()
cuGraphExecHostNodeSetParams = Pass()
cuGraphExecChildGraphNodeSetParams = Pass()
cuGraphExecEventRecordNodeSetEvent = Pass()
cuGraphExecEventWaitNodeSetEvent = Pass()
cuGraphExecExternalSemaphoresSignalNodeSetParams = Pass()
cuGraphExecExternalSemaphoresWaitNodeSetParams = Pass()
cuGraphNodeSetEnabled = Pass()
cuGraphNodeGetEnabled = Pass()
cuGraphUpload = Charge()
cuGraphLaunch = Launch("and charged, as Charge rows are, where the graph has allocation nodes")
cuGraphExecDestroy = Hold()
cuGraphDestroy = Pass()
cuGraphExecUpdate = Pass("a graph with allocation nodes cannot be updated")
cuGraphKernelNodeCopyAttributes = Pass()
cuGraphKernelNodeGetAttribute = Pass()
cuGraphKernelNodeSetAttribute = Pass()
cuGraphDebugDotPrint = Pass()
cuUserObjectCreate = Pass()
cuUserObjectRetain = Pass()
cuUserObjectRelease = Pass()
cuGraphRetainUserObject = Pass()
cuGraphReleaseUserObject = Pass()
cuGraphAddNode = Pass("as cuGraphAddMemAllocNode: takes nothing before the graph is launched")
cuGraphNodeSetParams = Pass()
cuGraphNodeGetParams = Pass()
cuGraphExecNodeSetParams = Pass()
cuGraphConditionalHandleCreate = Pass()

# Occupancy
cuOccupancyMaxActiveBlocksPerMultiprocessor = Pass("of the whole GPU, which a slice has in its turn")
cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags = Pass()
cuOccupancyMaxPotentialBlockSize = Pass()
cuOccupancyMaxPotentialBlockSizeWithFlags = Pass()
cuOccupancyAvailableDynamicSMemPerBlock = Pass()
cuOccupancyMaxPotentialClusterSize = Pass()
cuOccupancyMaxActiveClusters = Pass()

# Texture Reference Management [DEPRECATED]
cuTexRefSetArray = Pass()
cuTexRefSetMipmappedArray = Pass()
cuTexRefSetAddress = Pass()
cuTexRefSetAddress2D = Pass()
cuTexRefSetFormat = Pass()
cuTexRefSetAddressMode = Pass()
cuTexRefSetFilterMode = Pass()
cuTexRefSetMipmapFilterMode = Pass()
cuTexRefSetMipmapLevelBias = Pass()
cuTexRefSetMipmapLevelClamp = Pass()
cuTexRefSetMaxAnisotropy = Pass()
cuTexRefSetBorderColor = Pass()
cuTexRefSetFlags = Pass()
cuTexRefGetAddress = Pass()
cuTexRefGetArray = Pass()
cuTexRefGetMipmappedArray = Pass()
cuTexRefGetAddressMode = Pass()
cuTexRefGetFilterMode = Pass()
cuTexRefGetFormat = Pass()
cuTexRefGetMipmapFilterMode = Pass()
cuTexRefGetMipmapLevelBias = Pass()
cuTexRefGetMipmapLevelClamp = Pass()
cuTexRefGetMaxAnisotropy = Pass()
cuTexRefGetBorderColor = Pass()
cuTexRefGetFlags = Pass()
cuTexRefCreate = Pass()
cuTexRefDestroy = Pass()

# Surface Reference Management [DEPRECATED]
cuSurfRefSetArray = Pass()
cuSurfRefGetArray = Pass()

# Texture Object Management
cuTexObjectCreate = Pass()
cuTexObjectDestroy = Pass()
cuTexObjectGetResourceDesc = Pass()
cuTexObjectGetTextureDesc = Pass()
cuTexObjectGetResourceViewDesc = Pass()

# Surface Object Management
cuSurfObjectCreate = Pass()
cuSurfObjectDestroy = Pass()
cuSurfObjectGetResourceDesc = Pass()

# Tensor Map Object Management
cuTensorMapEncodeTiled = Pass()
cuTensorMapEncodeIm2col = Pass()
cuTensorMapEncodeIm2colWide = Pass()
cuTensorMapReplaceAddress = Pass()
cuTensorMapSetAllocationClass = Pass()

# Peer Context Memory Access
cuDeviceCanAccessPeer = Pass()
cuCtxEnablePeerAccess = Pass()
cuCtxDisablePeerAccess = Pass()
cuDeviceGetP2PAttribute = Pass()
cuDeviceGetP2PAtomicCapabilities = Pass()

# Graphics Interoperability
cuGraphicsUnregisterResource = Pass()
cuGraphicsSubResourceGetMappedArray = Pass()
cuGraphicsResourceGetMappedMipmappedArray = Pass()
cuGraphicsResourceGetMappedPointer = Pass()
cuGraphicsResourceSetMapFlags = Pass()
cuGraphicsMapResources = Pass("memory of the graphics API, which NVML lists under its process")
cuGraphicsUnmapResources = Pass()

# Driver Entry Point Access
cuGetProcAddress = Lookup()

# Coredump Attributes Control API
cuCoredumpGetAttribute = Pass()
cuCoredumpGetAttributeGlobal = Pass()
cuCoredumpSetAttribute = Pass()
cuCoredumpSetAttributeGlobal = Pass()
cuCoredumpRegisterStartCallback = Pass()
cuCoredumpRegisterCompleteCallback = Pass()
cuCoredumpDeregisterStartCallback = Pass()
cuCoredumpDeregisterCompleteCallback = Pass()

# Export tables
cuGetExportTable = Pass("the runtime verifies that its pointers are the driver's own")

# Green Contexts
cuGreenCtxCreate = Lifecycle()
cuGreenCtxDestroy = Lifecycle()
cuCtxFromGreenCtx = Hold("memory that is allocated there is the primary context's")
cuDeviceGetDevResource = Pass()
cuCtxGetDevResource = Pass()
cuGreenCtxGetDevResource = Pass()
cuDevSmResourceSplitByCount = Pass()
cuDevSmResourceSplit = Pass()
cuDevResourceGenerateDesc = Pass()
cuGreenCtxRecordEvent = Pass()
cuGreenCtxWaitEvent = Pass()
cuStreamGetGreenCtx = Pass()
cuGreenCtxStreamCreate = Lifecycle()
cuGreenCtxGetId = Pass()
cuStreamGetDevResource = Pass()

# Error Log Management Functions
cuLogsRegisterCallback = Pass()
cuLogsUnregisterCallback = Pass()
cuLogsCurrent = Pass()
cuLogsDumpToFile = Pass()
cuLogsDumpToMemory = Pass()

# CUDA Checkpointing
cuCheckpointProcessGetRestoreThreadId = Pass()
cuCheckpointProcessGetState = Pass()
cuCheckpointProcessLock = Pass()
cuCheckpointProcessCheckpoint = Pass("stays charged while it is away from the GPU: it has to fit again")
cuCheckpointProcessRestore = Pass("to what is charged still; moved to another GPU it is overhead there")
cuCheckpointOperationComplete = Pass()
cuCheckpointProcessUnlock = Pass()

# Profiler Control [DEPRECATED]
cuProfilerInitialize = Pass()

# Profiler Control
cuProfilerStart = Pass("profilers inside a slice see its own process")
cuProfilerStop = Pass()

# OpenGL Interoperability
cuGraphicsGLRegisterBuffer = Pass()
cuGraphicsGLRegisterImage = Pass()
cuGLGetDevices = Pass()

# OpenGL Interoperability [DEPRECATED]
cuGLCtxCreate = Overhead("deprecated; a hook would need GL's types")
cuGLInit = Pass()
cuGLRegisterBufferObject = Pass()
cuGLMapBufferObject = Pass()
cuGLUnmapBufferObject = Pass()
cuGLUnregisterBufferObject = Pass()
cuGLSetBufferObjectMapFlags = Pass()
cuGLMapBufferObjectAsync = Pass()
cuGLUnmapBufferObjectAsync = Pass()

# EGL Interoperability
cuGraphicsEGLRegisterImage = Pass()
cuEGLStreamConsumerConnect = Pass()
cuEGLStreamConsumerConnectWithFlags = Pass()
cuEGLStreamConsumerDisconnect = Pass()
cuEGLStreamConsumerAcquireFrame = Pass()
cuEGLStreamConsumerReleaseFrame = Pass()
cuEGLStreamProducerConnect = Pass()
cuEGLStreamProducerDisconnect = Pass()
cuEGLStreamProducerPresentFrame = Pass()
cuEGLStreamProducerReturnFrame = Pass()
cuGraphicsResourceGetMappedEglFrame = Pass()
cuEventCreateFromEGLSync = Pass()

# VDPAU Interoperability
cuVDPAUGetDevice = Pass()
cuVDPAUCtxCreate = Overhead("deprecated; a hook would need VDPAU's types")
cuGraphicsVDPAURegisterVideoSurface = Pass()
cuGraphicsVDPAURegisterOutputSurface = Pass()
