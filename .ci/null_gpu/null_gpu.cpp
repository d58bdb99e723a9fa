// A GPU that computes nothing, for a build of torch for CUDA on a machine without one.
//
// It stands in for CUDA's runtime and driver, cuBLAS, cuDNN, CUPTI and NVML. Device memory is the host's; a kernel
// leaves it as it is, and takes time on a stream. cuDNN's convolutions launch kernels with the names of real ones, with
// conversions around them if their input is contiguous. What torch links to and is not here does nothing (run.py adds
// it).
//
// Environment: NULL_GPU_COUNT, NULL_GPU_NAME, NULL_GPU_GIB (memory of all processes together), NULL_GPU_DRIVER (12000
// is too old), NULL_GPU_CUDNN, NULL_GPU_SLOW (factor on kernel times), NULL_GPU_FATAL (a part of a kernel's name: it
// loses the device), NULL_GPU_SHARED (the file in which processes count their memory).

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <cupti.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))
// A function whose arguments do not matter, under a name that the headers declare with them.
#define ANY_ARGUMENTS(result, name, value)  \
    API result null_##name(...) asm(#name); \
    API result null_##name(...) { return value; }

static double setting(const char* name, double otherwise) {
    const char* text = getenv(name);
    return text ? atof(text) : otherwise;
}
static int device_count() { return (int)setting("NULL_GPU_COUNT", 1); }
static int driver_version() { return (int)setting("NULL_GPU_DRIVER", CUDA_VERSION); }
static const char* device_name() { return getenv("NULL_GPU_NAME") ? getenv("NULL_GPU_NAME") : "NVIDIA H100 80GB HBM3"; }
static uint64_t now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static std::recursive_mutex mutex;
#define LOCKED std::lock_guard<std::recursive_mutex> guard(mutex)
static thread_local cudaError_t last_error = cudaSuccess;
static thread_local int current_device = 0;
static std::atomic<int> lost{0};
static pid_t first_user = 0;

static cudaError_t failed(cudaError_t error) { return error ? last_error = error : error; }
// CUDA works in no fork of a process that has used it, and not after the device was lost.
static cudaError_t usable() {
    if (!first_user) first_user = getpid();
    if (first_user != getpid()) return failed(cudaErrorInitializationError);
    if (driver_version() < CUDA_VERSION) return failed(cudaErrorInsufficientDriver);
    return lost ? failed((cudaError_t)(int)lost) : cudaSuccess;
}
#define USE \
    if (cudaError_t error = usable()) return error

// Memory.

struct Share {
    std::atomic<int> process;
    std::atomic<long long> bytes;
};
static const int kShares = 4096;
static const long long kContext = 500ll << 20;
static std::map<char*, size_t> blocks;

static Share* shares() {
    static Share* mapped = nullptr;
    if (!mapped) {
        const char* file = getenv("NULL_GPU_SHARED");
        int descriptor = open(file ? file : "/dev/shm/null_gpu", O_RDWR | O_CREAT, 0600);
        if (ftruncate(descriptor, kShares * sizeof(Share))) abort();
        mapped = (Share*)mmap(0, kShares * sizeof(Share), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
        close(descriptor);
    }
    return mapped;
}
static bool is_alive(int process) { return process && (process == getpid() || kill(process, 0) == 0); }
static Share* own_share() {
    static Share* own = nullptr;
    static int of = 0;
    for (int i = 0; of != getpid() && i < kShares; i++) {
        int before = shares()[i].process;
        if (!is_alive(before) && shares()[i].process.compare_exchange_strong(before, getpid())) {
            own = shares() + i, of = getpid(), own->bytes = kContext;
        }
    }
    return own;
}
static long long total_bytes() { return (long long)(setting("NULL_GPU_GIB", 80) * (1ll << 30)); }
static long long free_bytes() {
    long long used = 0;
    for (int i = 0; i < kShares; i++) used += is_alive(shares()[i].process) ? (long long)shares()[i].bytes : 0;
    return std::max(0ll, total_bytes() - used);
}
static bool on_device(const void* pointer) {
    LOCKED;
    auto after = blocks.upper_bound((char*)pointer);
    return after != blocks.begin() && (char*)pointer < std::prev(after)->first + std::prev(after)->second;
}
API cudaError_t cudaMalloc(void** pointer, size_t size) {
    USE;
    LOCKED;
    *pointer = nullptr;
    Share* own = own_share();
    if ((long long)size < 0 || (long long)size > free_bytes()) return failed(cudaErrorMemoryAllocation);
    size = std::max<size_t>(4096, (size + 4095) / 4096 * 4096);
    void* made = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) return failed(cudaErrorMemoryAllocation);
    blocks[(char*)made] = size, own->bytes += size, *pointer = made;
    return cudaSuccess;
}
API cudaError_t cudaHostAlloc(void** pointer, size_t size, unsigned) {
    USE;
    return posix_memalign(pointer, 4096, size ? size : 1) ? cudaErrorMemoryAllocation : cudaSuccess;
}
API cudaError_t cudaFreeHost(void* pointer) { return free(pointer), cudaSuccess; }
API cudaError_t cudaMemGetInfo(size_t* left, size_t* total) {
    USE;
    own_share();
    return *left = free_bytes(), *total = total_bytes(), cudaSuccess;
}
API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void* pointer) {
    *found = {};
    found->type = on_device(pointer) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
    return found->devicePointer = (void*)pointer, cudaSuccess;
}
API CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
    if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE || attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
        *(int*)value = attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ? CU_MEMORYTYPE_DEVICE : 0;
    else
        *(CUdeviceptr*)value = attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER ? pointer : 0;
    return on_device((void*)pointer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Kernels on streams, and the records that CUPTI gives of them.

struct Kernel {
    std::string name;
    uint64_t nanoseconds;
    dim3 grid, block;
};
struct Graph {
    std::vector<Kernel> kernels;
    unsigned long long id;
};
struct Stream {
    uint64_t busy_until = 0;
    Graph* captured = nullptr;
    int priority = 0;
    unsigned id = 7;
};
struct Event {
    uint64_t at = 0;
};
struct Outer {
    CUpti_ExternalCorrelationKind kind;
    uint64_t id;
};
static Stream default_stream;
static std::vector<Stream*> streams;
static std::atomic<uint32_t> launches{1};
static std::atomic<unsigned long long> graphs{1};
static bool is_recorded[1024];
static std::vector<std::vector<uint8_t>> records;
static thread_local std::vector<Outer> outer[8];
static CUpti_BuffersCallbackRequestFunc request_buffer;
static CUpti_BuffersCallbackCompleteFunc give_buffer;
static CUpti_TimestampCallbackFunc own_clock;
static uint8_t* buffer = nullptr;
static size_t buffer_size = 0;

static Stream* stream_of(const void* handle) { return (size_t)handle <= 2 ? &default_stream : (Stream*)handle; }

static uint64_t clock_of_cupti(uint64_t nanoseconds) {
    static double rate = 0;
    static uint64_t zero, own_zero;
    if (!own_clock) return nanoseconds;
    if (!rate) {  // its unit is the caller's
        zero = now(), own_zero = own_clock();
        while (now() < zero + 3000000) {}
        rate = (double)(own_clock() - own_zero) / (now() - zero);
    }
    return own_zero + (int64_t)(((double)nanoseconds - (double)zero) * rate);
}
template <class Record>
static void keep(const Record& record) {
    LOCKED;
    size_t most = 0;
    if (!buffer && request_buffer) request_buffer(&buffer, &buffer_size, &most);  // none: nothing is ever flushed
    records.emplace_back((const uint8_t*)&record, (const uint8_t*)&record + sizeof record);
}
static void keep_call(uint32_t function, uint64_t begun, uint32_t correlation) {
    if (!is_recorded[CUPTI_ACTIVITY_KIND_RUNTIME]) return;
    CUpti_ActivityAPI call = {};
    call.kind = CUPTI_ACTIVITY_KIND_RUNTIME, call.cbid = function, call.correlationId = correlation;
    call.start = clock_of_cupti(begun), call.end = clock_of_cupti(now());
    call.processId = getpid(), call.threadId = (uint32_t)pthread_self();
    keep(call);
    for (auto& kind : outer) {
        if (kind.empty()) continue;
        CUpti_ActivityExternalCorrelation around = {};
        around.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, around.correlationId = correlation;
        around.externalKind = kind.back().kind, around.externalId = kind.back().id;
        keep(around);
    }
}
static void enqueue(Stream* stream, const Kernel& kernel, uint32_t correlation) {
    uint64_t start = std::max(stream->busy_until + 500, now() + 2000);
    stream->busy_until = start + kernel.nanoseconds;
    if (!is_recorded[CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL]) return;
    CUpti_ActivityKernel10 seen = {};
    seen.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, seen.correlationId = correlation, seen.contextId = 1;
    seen.start = clock_of_cupti(start), seen.end = seen.completed = clock_of_cupti(stream->busy_until);
    seen.streamId = stream->id, seen.name = strdup(kernel.name.c_str()), seen.registersPerThread = 32;
    seen.gridX = kernel.grid.x, seen.gridY = kernel.grid.y, seen.gridZ = kernel.grid.z;
    seen.blockX = kernel.block.x, seen.blockY = kernel.block.y, seen.blockZ = kernel.block.z;
    keep(seen);
}
static bool loses_the_device(const std::string& kernel) {
    const char* part = getenv("NULL_GPU_FATAL");
    return part && *part && kernel.find(part) != std::string::npos;
}
static cudaError_t launch(const void* handle, const std::string& name, dim3 grid, dim3 block, double microseconds = 0) {
    USE;
    uint64_t begun = now();
    Stream* stream = stream_of(handle);
    if (!microseconds) microseconds = std::min(3000.0, 2 + 0.004 * grid.x * grid.y * grid.z);
    Kernel kernel{name, (uint64_t)(1000 * microseconds * setting("NULL_GPU_SLOW", 1)), grid, block};
    while (now() < begun + 1500) {}  // the host's part
    LOCKED;
    if (stream->captured) return stream->captured->kernels.push_back(kernel), cudaSuccess;
    if (loses_the_device(name)) lost = cudaErrorIllegalAddress;
    uint32_t correlation = launches++;
    enqueue(stream, kernel, correlation);
    keep_call(CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000, begun, correlation);
    return cudaSuccess;
}
static cudaError_t wait_for(uint64_t moment) {
    USE;
    for (uint64_t at = now(); at < moment; at = now())
        if (moment - at > 60000) usleep((moment - at - 50000) / 1000);
    return usable();
}
static cudaError_t wait_for_all() {
    uint64_t last = default_stream.busy_until;
    LOCKED;
    for (Stream* stream : streams) last = std::max(last, stream->busy_until);
    return wait_for(last);
}
static cudaError_t copy(void* to, const void* from, size_t size, const void* handle) {
    USE;
    Stream* stream = stream_of(handle);
    if (stream->captured) return stream->captured->kernels.push_back({"memcpy", 1000, 1, 1}), cudaSuccess;
    if (on_device(to) && on_device(from))
        stream->busy_until = std::max(stream->busy_until, now()) + 2000 + size / 2000;
    else
        wait_for(stream->busy_until);
    memmove(to, from, size);
    return usable();
}

API cudaError_t cudaFree(void* pointer) {
    USE;
    wait_for_all();
    LOCKED;
    auto found = blocks.find((char*)pointer);
    if (found == blocks.end()) return cudaSuccess;
    own_share()->bytes -= found->second;
    munmap(pointer, found->second);
    return blocks.erase(found), cudaSuccess;
}
API cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind) { return copy(to, from, size, 0); }
API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind, cudaStream_t stream) {
    return copy(to, from, size, stream);
}
API cudaError_t cudaMemsetAsync(void* pointer, int value, size_t size, cudaStream_t handle) {
    USE;
    Stream* stream = stream_of(handle);
    if (stream->captured) return cudaSuccess;
    stream->busy_until = std::max(stream->busy_until, now()) + 2000 + size / 3000;
    if (size < 64 << 20) memset(pointer, value, size);  // larger ones only empty a cache
    return cudaSuccess;
}
API cudaError_t cudaMemset(void* pointer, int value, size_t size) { return cudaMemsetAsync(pointer, value, size, 0); }
API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* made, unsigned, int priority) {
    USE;
    LOCKED;
    Stream* stream = new Stream;
    stream->priority = priority, stream->id = 10 + streams.size();
    return streams.push_back(stream), *made = (cudaStream_t)stream, cudaSuccess;
}
API cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
    return *priority = stream_of(stream)->priority, cudaSuccess;
}
API cudaError_t cudaStreamQuery(cudaStream_t stream) {
    USE;
    return now() < stream_of(stream)->busy_until ? cudaErrorNotReady : cudaSuccess;
}
API cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return wait_for(stream_of(stream)->busy_until); }
API cudaError_t cudaDeviceSynchronize() { return wait_for_all(); }
API cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
    Stream* stream = stream_of(handle);
    return stream->busy_until = std::max(stream->busy_until, ((Event*)event)->at), usable();
}
API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* made, unsigned) {
    return *made = (cudaEvent_t) new Event, usable();
}
API cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete (Event*)event, cudaSuccess; }
API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return ((Event*)event)->at = std::max(stream_of(stream)->busy_until, now() + 1000), usable();
}
API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
    return cudaEventRecord(event, stream);
}
API cudaError_t cudaEventQuery(cudaEvent_t event) {
    USE;
    return now() < ((Event*)event)->at ? cudaErrorNotReady : cudaSuccess;
}
API cudaError_t cudaEventSynchronize(cudaEvent_t event) { return wait_for(((Event*)event)->at); }
API cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
    return *milliseconds = 1e-6 * ((double)((Event*)to)->at - (double)((Event*)from)->at), usable();
}
API cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    return stream_of(stream)->captured = new Graph{{}, graphs++}, usable();
}
API cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    return *graph = (cudaGraph_t)stream_of(stream)->captured, stream_of(stream)->captured = nullptr, usable();
}
API cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    *status = stream_of(stream)->captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                                         cudaGraph_t* graph, const cudaGraphNode_t**, const cudaGraphEdgeData**,
                                         size_t* dependencies) {
    Graph* captured = stream_of(stream)->captured;
    if (id) *id = captured ? captured->id : 0;
    if (graph) *graph = (cudaGraph_t)captured;
    if (dependencies) *dependencies = 0;
    return cudaStreamIsCapturing(stream, status);
}
API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
    return *made = (cudaGraphExec_t) new Graph(*(Graph*)graph), cudaSuccess;
}
API cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    USE;
    LOCKED;
    uint64_t begun = now();
    uint32_t correlation = launches++;
    for (auto& kernel : ((Graph*)graph)->kernels) {
        if (loses_the_device(kernel.name)) lost = cudaErrorIllegalAddress;
        enqueue(stream_of(stream), kernel, correlation);
    }
    return keep_call(CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_v10000, begun, correlation), cudaSuccess;
}
API cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
    return *count = ((Graph*)graph)->kernels.size(), cudaSuccess;
}
API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
    cudaStreamSynchronize(stream);
    return function(data), usable();
}

API CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) { return is_recorded[kind] = true, CUPTI_SUCCESS; }
API CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) { return is_recorded[kind] = false, CUPTI_SUCCESS; }
API CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                               CUpti_BuffersCallbackCompleteFunc complete) {
    return request_buffer = request, give_buffer = complete, CUPTI_SUCCESS;
}
API CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc clock) {
    return own_clock = clock, CUPTI_SUCCESS;
}
static size_t padded(size_t size) { return (size + 7) / 8 * 8; }
API CUptiResult cuptiActivityFlushAll(uint32_t) {
    std::vector<std::vector<uint8_t>> kept;
    {
        LOCKED;
        kept.swap(records);
    }
    for (size_t next = 0, most = 0; request_buffer && next < kept.size();) {
        if (!buffer) request_buffer(&buffer, &buffer_size, &most);
        size_t filled = 0;
        for (; next < kept.size() && filled + padded(kept[next].size()) <= buffer_size; next++) {
            memcpy(buffer + filled, kept[next].data(), kept[next].size());
            filled += padded(kept[next].size());
        }
        if (!filled) break;
        give_buffer(nullptr, 0, buffer, buffer_size, filled);
        buffer = nullptr;
    }
    return CUPTI_SUCCESS;
}
API CUptiResult cuptiActivityGetNextRecord(uint8_t* from, size_t size, CUpti_Activity** record) {
    uint8_t* next = from;
    if (*record) {
        bool is_kernel = (*record)->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
        bool is_call = (*record)->kind == CUPTI_ACTIVITY_KIND_RUNTIME;
        next = (uint8_t*)*record + padded(is_kernel ? sizeof(CUpti_ActivityKernel10)
                                          : is_call ? sizeof(CUpti_ActivityAPI)
                                                    : sizeof(CUpti_ActivityExternalCorrelation));
    }
    if (next >= from + size) return CUPTI_ERROR_MAX_LIMIT_REACHED;
    return *record = (CUpti_Activity*)next, CUPTI_SUCCESS;
}
API CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* count) {
    return *count = 0, CUPTI_SUCCESS;
}
API CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t id) {
    return outer[kind & 7].push_back({kind, id}), CUPTI_SUCCESS;
}
API CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t* id) {
    auto& open = outer[kind & 7];
    if (open.empty()) return CUPTI_ERROR_QUEUE_EMPTY;
    if (id) *id = open.back().id;
    return open.pop_back(), CUPTI_SUCCESS;
}
API CUptiResult cuptiGetVersion(uint32_t* version) { return *version = CUPTI_API_VERSION, CUPTI_SUCCESS; }
API CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* made, CUpti_CallbackFunc, void*) {
    return *made = (CUpti_SubscriberHandle)1, CUPTI_SUCCESS;
}

// The runtime's functions by their host addresses, and the device.

static std::unordered_map<const void*, std::string*> functions;
static thread_local struct {
    dim3 grid, block;
    size_t shared;
    void* stream;
} pushed;

static std::string& name_of(const void* function) {
    static std::string unknown = "unknown";
    LOCKED;
    auto found = functions.find(function);
    return found == functions.end() ? unknown : *found->second;
}
API void** __cudaRegisterFatBinary(void*) {
    static void* handle[4];
    return handle;
}
API void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, uint3*, uint3*, dim3*,
                                dim3*, int*) {
    LOCKED;
    functions[function] = new std::string(name);
}
API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* stream) {
    return pushed = {grid, block, shared, stream}, 0;
}
API cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
    *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared;
    return *(void**)stream = pushed.stream, cudaSuccess;
}
API cudaError_t __cudaGetKernel(cudaKernel_t* found, const void* function) {
    return *found = (cudaKernel_t)&name_of(function), cudaSuccess;
}
API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void**, size_t, cudaStream_t stream) {
    return launch(stream, *(std::string*)kernel, grid, block);
}
API cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void**, size_t, cudaStream_t stream) {
    return launch(stream, name_of(function), grid, block);
}
API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* how, const void* function, void**) {
    return launch(how->stream, name_of(function), how->gridDim, how->blockDim);
}
API cudaError_t cudaGetDeviceCount(int* count) {
    USE;
    return (*count = device_count()) ? cudaSuccess : failed(cudaErrorNoDevice);
}
API cudaError_t cudaDriverGetVersion(int* version) { return *version = driver_version(), cudaSuccess; }
API cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDA_VERSION, cudaSuccess; }
API cudaError_t cudaGetDevice(int* device) { return *device = current_device, usable(); }
API cudaError_t cudaSetDevice(int device) {
    USE;
    if (device < 0 || device >= device_count()) return failed(cudaErrorInvalidDevice);
    return current_device = device, cudaSuccess;
}
static int attribute_of_device(int attribute) {
    static const std::map<int, int> known = {
        {cudaDevAttrComputeCapabilityMajor, 9},
        {cudaDevAttrMultiProcessorCount, 132},
        {cudaDevAttrMaxThreadsPerBlock, 1024},
        {cudaDevAttrMaxSharedMemoryPerBlock, 49152},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, 232448},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 233472},
        {cudaDevAttrWarpSize, 32},
        {cudaDevAttrMaxRegistersPerBlock, 65536},
        {cudaDevAttrMaxRegistersPerMultiprocessor, 65536},
        {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
        {cudaDevAttrMaxGridDimX, 2147483647},
        {cudaDevAttrMaxGridDimY, 65535},
        {cudaDevAttrMaxGridDimZ, 65535},
        {cudaDevAttrMaxBlockDimX, 1024},
        {cudaDevAttrMaxBlockDimY, 1024},
        {cudaDevAttrMaxBlockDimZ, 64},
        {cudaDevAttrClockRate, 1980000},
        {cudaDevAttrMemoryClockRate, 2619000},
        {cudaDevAttrGlobalMemoryBusWidth, 5120},
        {cudaDevAttrL2CacheSize, 52428800},
        {cudaDevAttrCooperativeLaunch, 1},
        {cudaDevAttrUnifiedAddressing, 1},
    };
    auto found = known.find(attribute);
    return found == known.end() ? 0 : found->second;
}
API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    return *value = attribute_of_device(attribute), cudaSuccess;
}
API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* device, int number) {
    *device = {};
    strncpy(device->name, device_name(), sizeof device->name - 1);
    device->totalGlobalMem = total_bytes(), device->major = 9, device->multiProcessorCount = 132, device->warpSize = 32;
    device->maxThreadsPerBlock = 1024, device->maxThreadsPerMultiProcessor = 2048, device->sharedMemPerBlock = 49152;
    device->sharedMemPerBlockOptin = 232448, device->sharedMemPerMultiprocessor = 233472;
    device->regsPerBlock = device->regsPerMultiprocessor = 65536, device->l2CacheSize = 52428800;
    device->maxGridSize[0] = 2147483647, device->maxGridSize[1] = device->maxGridSize[2] = 65535;
    device->maxThreadsDim[0] = device->maxThreadsDim[1] = 1024, device->maxThreadsDim[2] = 64;
    for (int i = 0; i < 16; i++) ((char*)&device->uuid)[i] = (char)(i + 16 * number);
    return cudaSuccess;
}
API cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    return *least = 0, *greatest = -5, cudaSuccess;
}
API cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 0, cudaSuccess; }
API cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
    return *address = (void*)symbol, cudaSuccess;
}
API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* found, const void*) {
    *found = {};
    return found->maxThreadsPerBlock = 1024, found->numRegs = 32, found->binaryVersion = found->ptxVersion = 90,
           cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* count, const void*, int, size_t, unsigned) {
    return *count = 2, cudaSuccess;
}
API cudaError_t cudaPeekAtLastError() { return lost ? (cudaError_t)(int)lost : last_error; }
API cudaError_t cudaGetLastError() {
    cudaError_t error = cudaPeekAtLastError();
    return last_error = cudaSuccess, error;
}
API const char* cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorMemoryAllocation      ? "out of memory"
           : error == cudaErrorIllegalAddress      ? "an illegal memory access was encountered"
           : error == cudaErrorInitializationError ? "initialization error"
           : error == cudaErrorInsufficientDriver  ? "CUDA driver version is insufficient for CUDA runtime version"
           : error == cudaErrorNoDevice            ? "no CUDA-capable device is detected"
           : error == cudaErrorInvalidDevice       ? "invalid device ordinal"
                                                   : "another error";
}
API const char* cudaGetErrorName(cudaError_t) { return "cudaError"; }
API cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** found, unsigned, unsigned long long,
                                                 cudaDriverEntryPointQueryResult* result) {
    *found = dlsym(RTLD_DEFAULT, name);
    if (result) *result = *found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

// The driver, which Triton and Inductor launch by.

static CUresult by_driver(cudaError_t error) { return (CUresult)error; }
API CUresult cuInit(unsigned) { return device_count() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE; }
API CUresult cuDriverGetVersion(int* version) { return *version = driver_version(), CUDA_SUCCESS; }
API CUresult cuDeviceGetCount(int* count) { return *count = device_count(), CUDA_SUCCESS; }
API CUresult cuDeviceGet(CUdevice* device, int number) { return *device = number, CUDA_SUCCESS; }
API CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
    return *value = attribute_of_device(attribute), CUDA_SUCCESS;
}
API CUresult cuCtxGetCurrent(CUcontext* context) { return *context = (CUcontext)1, CUDA_SUCCESS; }
API CUresult cuCtxGetDevice(CUdevice* device) { return *device = current_device, CUDA_SUCCESS; }
API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) { return *context = (CUcontext)1, CUDA_SUCCESS; }
API CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* is_active) {
    return *flags = 0, *is_active = first_user == getpid(), CUDA_SUCCESS;
}
API CUresult cuGetErrorString(CUresult error, const char** text) {
    return *text = cudaGetErrorString((cudaError_t)error), CUDA_SUCCESS;
}
API CUresult cuModuleLoad(CUmodule* made, const char*) { return *made = (CUmodule)1, by_driver(usable()); }
API CUresult cuModuleLoadData(CUmodule* made, const void*) { return *made = (CUmodule)1, by_driver(usable()); }
API CUresult cuModuleGetFunction(CUfunction* found, CUmodule, const char* name) {
    return *found = (CUfunction) new std::string(name), CUDA_SUCCESS;
}
API CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction) {
    *value = attribute == CU_FUNC_ATTRIBUTE_NUM_REGS                ? 32
             : attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
                                                                    : 0;
    return CUDA_SUCCESS;
}
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* count, CUfunction, int, size_t) {
    return *count = 2, CUDA_SUCCESS;
}
API CUresult cuOccupancyMaxActiveClusters(int* count, CUfunction, const CUlaunchConfig*) {
    return *count = 2, CUDA_SUCCESS;
}
API CUresult cuLaunchKernel(CUfunction kernel, unsigned x, unsigned y, unsigned z, unsigned block_x, unsigned block_y,
                            unsigned block_z, unsigned, CUstream stream, void**, void**) {
    return by_driver(launch(stream, *(std::string*)kernel, dim3(x, y, z), dim3(block_x, block_y, block_z)));
}
API CUresult cuLaunchKernelEx(const CUlaunchConfig* how, CUfunction kernel, void**, void**) {
    return cuLaunchKernel(kernel, how->gridDimX, how->gridDimY, how->gridDimZ, how->blockDimX, how->blockDimY,
                          how->blockDimZ, 0, how->hStream, nullptr, nullptr);
}
ANY_ARGUMENTS(CUresult, cuCtxSetCurrent, CUDA_SUCCESS)
ANY_ARGUMENTS(CUresult, cuCtxGetLimit, CUDA_SUCCESS)
ANY_ARGUMENTS(CUresult, cuCtxSetLimit, CUDA_SUCCESS)
ANY_ARGUMENTS(CUresult, cuCtxPushCurrent, CUDA_SUCCESS)
ANY_ARGUMENTS(CUresult, cuCtxPopCurrent, CUDA_SUCCESS)
ANY_ARGUMENTS(CUresult, cuModuleUnload, CUDA_SUCCESS)
ANY_ARGUMENTS(CUresult, cuFuncSetAttribute, CUDA_SUCCESS)
ANY_ARGUMENTS(CUresult, cuFuncSetCacheConfig, CUDA_SUCCESS)
ANY_ARGUMENTS(CUresult, cuTensorMapEncodeTiled, CUDA_SUCCESS)

// cuBLAS: a handle is the stream it is set to.

API cublasStatus_t cublasCreate_v2(cublasHandle_t* made) {
    return *made = (cublasHandle_t) new void*(nullptr), CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
    return *(void**)handle = stream, CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasGetMathMode(cublasHandle_t, cublasMath_t* mode) {
    return *mode = CUBLAS_DEFAULT_MATH, CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t, cublasPointerMode_t* mode) {
    return *mode = CUBLAS_POINTER_MODE_HOST, CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t product(const void* stream, const char* name) {
    return launch(stream, name, dim3(264), dim3(256), 20) ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}
#define PRODUCT(name)                                                      \
    API cublasStatus_t null_##name(cublasHandle_t handle, ...) asm(#name); \
    API cublasStatus_t null_##name(cublasHandle_t handle, ...) { return product(*(void**)handle, "sm90_xmma_" #name); }
PRODUCT(cublasSgemm_v2)
PRODUCT(cublasDgemm_v2)
PRODUCT(cublasSgemv_v2)
PRODUCT(cublasDgemv_v2)
PRODUCT(cublasSgemmEx)
PRODUCT(cublasGemmEx)
PRODUCT(cublasSgemmStridedBatched)
PRODUCT(cublasDgemmStridedBatched)
PRODUCT(cublasGemmStridedBatchedEx)
template <class Handle>
static int make_one(Handle* made) {
    return *made = (Handle)calloc(1, 4096), 0;
}
API cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t, cudaDataType_t) {
    return (cublasStatus_t)make_one(made);
}
API cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
    return (cublasStatus_t)make_one(made);
}
API cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType, uint64_t, uint64_t, int64_t) {
    return (cublasStatus_t)make_one(made);
}
API cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                                  cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                                  cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,
                                                  cublasLtMatmulHeuristicResult_t* found, int* count) {
    return *found = {}, *count = 1, CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void*, const void*,
                                  cublasLtMatrixLayout_t, const void*, cublasLtMatrixLayout_t, const void*, const void*,
                                  cublasLtMatrixLayout_t, void*, cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t*,
                                  void*, size_t, cudaStream_t stream) {
    return product(stream, "nvjet_hsh_128x128_64x4_bias");
}

// cuDNN: a handle is the stream it is set to; descriptors of the backend are their attributes.

struct Descriptor {
    cudnnBackendDescriptorType_t type;
    std::map<int, std::vector<uint8_t>> values;
    std::map<int, int64_t> counts;
};

API size_t cudnnGetVersion() { return (size_t)setting("NULL_GPU_CUDNN", CUDNN_VERSION); }
API size_t cudnnGetCudartVersion() { return CUDA_VERSION; }
API cudnnStatus_t cudnnGetProperty(libraryPropertyType which, int* value) {
    int version = (int)cudnnGetVersion();
    *value = which == MAJOR_VERSION ? version / 10000 : which == MINOR_VERSION ? version / 100 % 100 : version % 100;
    return CUDNN_STATUS_SUCCESS;
}
API const char* cudnnGetErrorString(cudnnStatus_t) { return "an error of cuDNN"; }
API void cudnnGetLastErrorString(char* text, size_t size) {
    if (size) *text = 0;
}
API cudnnStatus_t cudnnCreate(cudnnHandle_t* made) {
    return *made = (cudnnHandle_t) new void*(nullptr), CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    return *(void**)handle = stream, CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
    return *stream = *(cudaStream_t*)handle, CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* made) { return (cudnnStatus_t)make_one(made); }
API cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* made) { return (cudnnStatus_t)make_one(made); }
API cudnnStatus_t cudnnCreateActivationDescriptor(cudnnActivationDescriptor_t* made) {
    return (cudnnStatus_t)make_one(made);
}
API cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* made) {
    return (cudnnStatus_t)make_one(made);
}
#define BATCH_NORM(name, kernel)                                                                       \
    API cudnnStatus_t null_##name(cudnnHandle_t handle, ...) asm(#name);                               \
    API cudnnStatus_t null_##name(cudnnHandle_t handle, ...) {                                         \
        return launch(*(void**)handle, kernel, dim3(64), dim3(256), 8) ? CUDNN_STATUS_EXECUTION_FAILED \
                                                                       : CUDNN_STATUS_SUCCESS;         \
    }
BATCH_NORM(cudnnBatchNormalizationForwardTrainingEx, "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512>(float)")
BATCH_NORM(cudnnBatchNormalizationForwardInference, "void cudnn::bn_fw_inf_1C11_kernel_NCHW<float, float>(float)")
BATCH_NORM(cudnnBatchNormalizationBackwardEx, "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512>(float)")
API cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnActivationDescriptor_t, size_t* size) {
    return *size = 256, CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnActivationDescriptor_t, size_t* size) {
    return *size = 256, CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(cudnnHandle_t, cudnnBatchNormMode_t,
                                                                       cudnnBatchNormOps_t,
                                                                       const cudnnActivationDescriptor_t,
                                                                       const cudnnTensorDescriptor_t, size_t* size) {
    return *size = 256, CUDNN_STATUS_SUCCESS;
}
static size_t width_of(cudnnBackendAttributeType_t type) {
    switch (type) {
        case CUDNN_TYPE_BOOLEAN:
        case CUDNN_TYPE_CHAR: return 1;
        case CUDNN_TYPE_INT64:
        case CUDNN_TYPE_DOUBLE:
        case CUDNN_TYPE_HANDLE:
        case CUDNN_TYPE_VOID_PTR:
        case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
        default: return 4;
    }
}
API cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* made) {
    return *made = (cudnnBackendDescriptor_t) new Descriptor{type, {}, {}}, CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name,
                                           cudnnBackendAttributeType_t type, int64_t count, const void* values) {
    auto* bytes = (const uint8_t*)values;
    ((Descriptor*)of)->values[name].assign(bytes, bytes + count * width_of(type));
    return ((Descriptor*)of)->counts[name] = count, CUDNN_STATUS_SUCCESS;
}
static Descriptor* part_of(Descriptor* whole, int name) {
    if (!whole || whole->values[name].size() < sizeof(void*)) return nullptr;
    return *(Descriptor**)whole->values[name].data();
}
API cudnnStatus_t cudnnBackendGetAttribute(const cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name,
                                           cudnnBackendAttributeType_t type, int64_t wanted, int64_t* count,
                                           void* values) {
    auto* own = (Descriptor*)of;
    bool asks = values && wanted;
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {  // one engine for everything
        *count = 1;
        if (!asks) return CUDNN_STATUS_SUCCESS;
        auto* engine = new Descriptor{CUDNN_BACKEND_ENGINE_DESCRIPTOR, {}, {}};
        engine->values[CUDNN_ATTR_ENGINE_OPERATION_GRAPH] = own->values[CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH];
        return cudnnBackendSetAttribute(*(cudnnBackendDescriptor_t*)values, CUDNN_ATTR_ENGINECFG_ENGINE,
                                        CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
    }
    if (name == CUDNN_ATTR_ENGINECFG_ENGINE && asks) {  // into a descriptor that the caller made
        if (Descriptor* engine = part_of(own, name)) **(Descriptor**)values = *engine;
        return *count = 1, CUDNN_STATUS_SUCCESS;
    }
    auto found = own->values.find(name);
    bool is_zero = name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE || name == CUDNN_ATTR_ENGINE_GLOBAL_INDEX;
    if (count) *count = found != own->values.end() ? own->counts[name] : is_zero;
    if (found != own->values.end() && asks)
        memcpy(values, found->second.data(), std::min(wanted * width_of(type), found->second.size()));
    else if (is_zero && values)
        *(int64_t*)values = 0;
    return CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t) {
    Descriptor* engine =
        part_of(part_of((Descriptor*)plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG), CUDNN_ATTR_ENGINECFG_ENGINE);
    Descriptor* operation = part_of(part_of(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH), CUDNN_ATTR_OPERATIONGRAPH_OPS);
    int type = operation ? operation->type : 0;
    bool is_data = type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
    bool is_weight = type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR;
    Descriptor* tensor = part_of(operation, is_data     ? CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY
                                            : is_weight ? CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X
                                                        : CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X);
    bool is_last = true, is_half = false;
    double elements = 1;
    if (tensor) {
        auto &sizes = tensor->values[CUDNN_ATTR_TENSOR_DIMENSIONS],
             &strides = tensor->values[CUDNN_ATTR_TENSOR_STRIDES];
        for (size_t i = 0; i + 8 <= sizes.size(); i += 8) elements *= *(int64_t*)&sizes[i];
        is_last = strides.size() < 16 || *(int64_t*)&strides[8] == 1;
        is_half = *(int*)tensor->values[CUDNN_ATTR_TENSOR_DATA_TYPE].data() != CUDNN_DATA_FLOAT;
    }
    std::string dtype = is_half ? "__nv_bfloat16" : "float",
                types = "<" + dtype + ", " + dtype + ", float, true, true, ";
    std::string kind = is_half ? "(cudnnKernelDataType_t)9>" : "(cudnnKernelDataType_t)0>",
                rest = "(float, " + dtype + " const*)";
    std::string pass = is_data ? "dgrad" : is_weight ? "wgrad" : "fprop";
    std::string numbers = is_half ? "bf16bf16_bf16f32_f32" : "f32f32_tf32f32_f32";
    unsigned blocks = 1 + (unsigned)(elements / 1e4);
    cudaError_t error = usable();
    auto run = [&](const std::string& name, double microseconds) {
        error = error ? error : launch(*(void**)handle, name, dim3(blocks), dim3(256), microseconds);
    };
    for (int i = 0; i < 2 && !is_last; i++)  // the input and the weight
        run("void cudnn::ops::nchwToNhwcKernel" + types + kind + rest, 2 + elements / (is_half ? 7e5 : 3e5));
    run("sm90_xmma_" + pass + "_implicit_gemm_" + numbers + "_nhwckrsc_nhwc_tilesize128x128x64_cudnn",
        5 + elements / (is_half ? 2e5 : 1e5));
    if (!is_last) run("void cudnn::ops::nhwcToNchwKernel" + types + kind + rest, 2 + elements / (is_half ? 7e5 : 3e5));
    return error ? CUDNN_STATUS_EXECUTION_FAILED : CUDNN_STATUS_SUCCESS;
}

// NVML, as far as torch asks how many GPUs there are.

ANY_ARGUMENTS(int, nvmlInit, 0)
ANY_ARGUMENTS(int, nvmlInit_v2, 0)
ANY_ARGUMENTS(int, nvmlInitWithFlags, 0)
ANY_ARGUMENTS(int, nvmlShutdown, 0)
API int nvmlDeviceGetCount_v2(unsigned* count) { return *count = device_count(), 0; }
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** found) { return *found = (void*)(size_t)(index + 1), 0; }
