//! The functions of the CUDA driver, NVRTC, cuBLASLt and NCCL that we call: tables of pointers under the libraries' own
//! names.
//!
//! Result codes are plain integers, because a newer driver may return a code that we have no name for. Opaque handles
//! (contexts, streams, events, modules, pools) are integers of pointer size; every ABI we build for passes them like
//! pointers.

use std::ffi::{c_char, c_uint, c_void};

use crate::library::{LibraryError, OpenLibrary};

/// A context, stream, event, module, function, pool or program.
pub(crate) type Handle = usize;
/// An address on a device.
pub(crate) type DevicePtr = u64;

/// A result code. 0 is success.
pub(crate) type Code = i32;
pub(crate) const OUT_OF_MEMORY: Code = 2;
pub(crate) const DEVICE_UNAVAILABLE: Code = 46;
pub(crate) const NO_DEVICE: Code = 100;
pub(crate) const NOT_READY: Code = 600;
pub(crate) const NOT_SUPPORTED: Code = 801;

pub(crate) const ATTRIBUTE_CAPABILITY_MAJOR: i32 = 75;
pub(crate) const ATTRIBUTE_CAPABILITY_MINOR: i32 = 76;
pub(crate) const P2P_PERFORMANCE_RANK: i32 = 1;
pub(crate) const P2P_ACCESS_SUPPORTED: i32 = 2;
pub(crate) const P2P_NATIVE_ATOMIC_SUPPORTED: i32 = 3;
pub(crate) const P2P_ARRAY_ACCESS_SUPPORTED: i32 = 4;
pub(crate) const POINTER_DEVICE_ORDINAL: i32 = 9;
pub(crate) const FUNCTION_MAX_DYNAMIC_SHARED: i32 = 8;
pub(crate) const STREAM_NON_BLOCKING: c_uint = 1;
pub(crate) const EVENT_BLOCKING_SYNC: c_uint = 1;
pub(crate) const EVENT_DISABLE_TIMING: c_uint = 2;
pub(crate) const HOST_PORTABLE: c_uint = 1;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`: [`super::capture_lock`] explains it.
pub(crate) const CAPTURE_THREAD_LOCAL: i32 = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`: for calls on threads of other libraries, whose captures are not ours to judge.
pub(crate) const CAPTURE_RELAXED: i32 = 2;
/// `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT`.
pub(crate) const CAPTURE_IMPLICIT: Code = 906;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemLocation {
    kind: i32,
    pub(crate) ordinal: i32,
}

impl MemLocation {
    pub(crate) fn device(ordinal: i32) -> MemLocation {
        MemLocation { kind: 1, ordinal }
    }
}

/// `CUmemPoolProps`: memory of one device that never moves, capped at `max_bytes` (since CUDA 12.2).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolProps {
    allocation: i32,
    handle_types: i32,
    pub(crate) location: MemLocation,
    security_attributes: *mut c_void,
    pub(crate) max_bytes: usize,
    usage: u16,
    reserved: [u8; 54],
}

impl PoolProps {
    pub(crate) fn capped(ordinal: i32, max_bytes: usize) -> PoolProps {
        PoolProps {
            allocation: 1,
            handle_types: 0,
            location: MemLocation::device(ordinal),
            security_attributes: std::ptr::null_mut(),
            max_bytes,
            usage: 0,
            reserved: [0; 54],
        }
    }
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) location: MemLocation,
    /// `CU_MEM_ACCESS_FLAGS_PROT_…`: 0 for none, 3 for reading and writing.
    pub(crate) flags: i32,
}

impl Access {
    pub(crate) fn read_write(ordinal: i32) -> Access {
        Access { location: MemLocation::device(ordinal), flags: 3 }
    }

    pub(crate) fn none(ordinal: i32) -> Access {
        Access { location: MemLocation::device(ordinal), flags: 0 }
    }
}

/// `cublasLtMatmulAlgo_t`: an algorithm for a GEMM, chosen by the library and opaque to us.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Algorithm(pub(crate) [u64; 8]);

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HeuristicResult {
    pub(crate) algorithm: Algorithm,
    pub(crate) workspace_bytes: usize,
    pub(crate) state: Code,
    waves: f32,
    reserved: [i32; 4],
}

/// `ncclUniqueId`: opaque to us, and passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct NcclUniqueId(pub(crate) [u8; 128]);

/// `ncclConfig_t` as in `nccl.h` of NCCL 2.18.1, where its tag is `ncclConfig_v21700`.
///
/// Newer headers only append fields. The library copies `size` bytes of what it is given over its own defaults, and takes
/// the defaults for the fields that are newer than `version` (`parseCommConfig` in `init.cc`): so the oldest layout suits
/// every version since. Its last four bytes are padding in 2.18 and `trafficClass` since 2.25.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct NcclConfig {
    size: usize,
    magic: c_uint,
    version: c_uint,
    pub(crate) blocking: i32,
    cga_cluster_size: i32,
    min_ctas: i32,
    max_ctas: i32,
    net_name: *const c_char,
    split_share: i32,
    traffic_class: i32,
}

impl NcclConfig {
    /// `NCCL_CONFIG_INITIALIZER` with `blocking = 0`: no call waits for another rank.
    pub(crate) fn non_blocking() -> NcclConfig {
        // `NCCL_CONFIG_UNDEF_INT`: the library decides.
        let undefined = i32::MIN;
        NcclConfig {
            size: size_of::<NcclConfig>(),
            magic: 0xcafe_beef,
            version: 21800,
            blocking: 0,
            cga_cluster_size: undefined,
            min_ctas: undefined,
            max_ctas: undefined,
            net_name: std::ptr::null(),
            split_share: undefined,
            traffic_class: undefined,
        }
    }
}

/// `CUuuid`.
pub(crate) type Uuid = [u8; 16];

macro_rules! or_code {
    () => {
        Code
    };
    ($other:ty) => {
        $other
    };
}

macro_rules! table {
    ($(#[$doc:meta])* $table:ident { $($symbol:ident($($arg:ty),*) $(-> $result:ty)?;)* }) => {
        $(#[$doc])*
        #[expect(non_snake_case, reason = "the library's own names, so that its manual can be searched")]
        #[derive(Clone, Copy)]
        pub(crate) struct $table {
            $(pub(crate) $symbol: unsafe extern "C" fn($($arg),*) -> or_code!($($result)?),)*
        }

        impl $table {
            /// Looks up every function, or fails with the first that is missing.
            pub(crate) fn load(opened: &OpenLibrary) -> Result<$table, LibraryError> {
                Ok($table {
                    $(
                        // SAFETY: CUDA's headers declare this type for this name since 12.2, NCCL's since 2.18.
                        $symbol: unsafe { opened.symbol(stringify!($symbol)) }?,
                    )*
                })
            }
        }
    };
}

table! {
    /// Functions that even the oldest driver has, to detect one that is too old.
    InitApi {
        cuInit(c_uint);
        cuDriverGetVersion(*mut i32);
    }
}

table! {
    /// The CUDA driver.
    DriverApi {
        cuGetErrorName(Code, *mut *const c_char);
        cuGetErrorString(Code, *mut *const c_char);

        cuDeviceGetCount(*mut i32);
        cuDeviceGet(*mut i32, i32);
        cuDeviceGetName(*mut c_char, i32, i32);
        cuDeviceGetUuid_v2(*mut Uuid, i32);
        cuDeviceGetPCIBusId(*mut c_char, i32, i32);
        cuDeviceTotalMem_v2(*mut usize, i32);
        cuDeviceGetAttribute(*mut i32, i32, i32);
        cuDeviceCanAccessPeer(*mut i32, i32, i32);
        cuDeviceGetP2PAttribute(*mut i32, i32, i32, i32);

        cuDevicePrimaryCtxRetain(*mut Handle, i32);
        cuDevicePrimaryCtxRelease_v2(i32);
        cuCtxCreate_v2(*mut Handle, c_uint, i32);
        cuCtxDestroy_v2(Handle);
        cuCtxGetCurrent(*mut Handle);
        cuCtxSetCurrent(Handle);
        cuCtxGetStreamPriorityRange(*mut i32, *mut i32);

        cuMemGetInfo_v2(*mut usize, *mut usize);
        cuMemAlloc_v2(*mut DevicePtr, usize);
        cuMemFree_v2(DevicePtr);
        cuMemPoolCreate(*mut Handle, *const PoolProps);
        cuMemPoolDestroy(Handle);
        cuMemPoolSetAccess(Handle, *const Access, usize);
        cuMemPoolGetAccess(*mut c_uint, Handle, *mut MemLocation);
        cuMemAllocFromPoolAsync(*mut DevicePtr, usize, Handle, Handle);
        cuMemFreeAsync(DevicePtr, Handle);
        cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
        cuMemFreeHost(*mut c_void);
        cuPointerGetAttribute(*mut c_void, i32, DevicePtr);

        cuStreamCreateWithPriority(*mut Handle, c_uint, i32);
        cuStreamDestroy_v2(Handle);
        cuStreamQuery(Handle);
        cuStreamWaitEvent(Handle, Handle, c_uint);
        cuEventCreate(*mut Handle, c_uint);
        cuEventDestroy_v2(Handle);
        cuEventRecord(Handle, Handle);
        cuEventQuery(Handle);
        cuEventSynchronize(Handle);
        cuEventElapsedTime(*mut f32, Handle, Handle);

        cuMemcpyHtoDAsync_v2(DevicePtr, *const c_void, usize, Handle);
        cuMemcpyDtoHAsync_v2(*mut c_void, DevicePtr, usize, Handle);
        cuMemcpyDtoDAsync_v2(DevicePtr, DevicePtr, usize, Handle);
        cuMemcpyPeerAsync(DevicePtr, Handle, DevicePtr, Handle, usize, Handle);
        cuMemsetD8Async(DevicePtr, u8, usize, Handle);

        cuModuleLoadData(*mut Handle, *const c_void);
        cuModuleUnload(Handle);
        cuModuleGetFunction(*mut Handle, Handle, *const c_char);
        cuFuncSetAttribute(Handle, i32, i32);
        cuLaunchKernel(
            Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
        );

        cuThreadExchangeStreamCaptureMode(*mut i32);
        cuStreamIsCapturing(Handle, *mut i32);
        cuStreamBeginCapture_v2(Handle, i32);
        cuStreamEndCapture(Handle, *mut Handle);
        cuGraphInstantiateWithFlags(*mut Handle, Handle, u64);
        cuGraphDestroy(Handle);
        cuGraphUpload(Handle, Handle);
        cuGraphLaunch(Handle, Handle);
        cuGraphExecDestroy(Handle);
    }
}

table! {
    /// NVRTC, the run-time compiler of CUDA C++.
    NvrtcApi {
        nvrtcVersion(*mut i32, *mut i32);
        nvrtcGetErrorString(Code) -> *const c_char;
        nvrtcGetNumSupportedArchs(*mut i32);
        nvrtcGetSupportedArchs(*mut i32);
        nvrtcCreateProgram(
            *mut Handle, *const c_char, *const c_char, i32, *const *const c_char, *const *const c_char
        );
        nvrtcDestroyProgram(*mut Handle);
        nvrtcCompileProgram(Handle, i32, *const *const c_char);
        nvrtcGetProgramLogSize(Handle, *mut usize);
        nvrtcGetProgramLog(Handle, *mut c_char);
        nvrtcGetCUBINSize(Handle, *mut usize);
        nvrtcGetCUBIN(Handle, *mut c_char);
    }
}

table! {
    /// cuBLASLt.
    CublasLtApi {
        cublasLtGetVersion() -> usize;
        cublasLtGetStatusString(Code) -> *const c_char;
        cublasLtCreate(*mut Handle);
        cublasLtDestroy(Handle);
        cublasLtMatmulDescCreate(*mut Handle, i32, i32);
        cublasLtMatmulDescDestroy(Handle);
        cublasLtMatmulDescSetAttribute(Handle, i32, *const c_void, usize);
        cublasLtMatrixLayoutCreate(*mut Handle, i32, u64, u64, i64);
        cublasLtMatrixLayoutDestroy(Handle);
        cublasLtMatrixLayoutSetAttribute(Handle, i32, *const c_void, usize);
        cublasLtMatmulPreferenceCreate(*mut Handle);
        cublasLtMatmulPreferenceDestroy(Handle);
        cublasLtMatmulPreferenceSetAttribute(Handle, i32, *const c_void, usize);
        cublasLtMatmulAlgoGetHeuristic(
            Handle, Handle, Handle, Handle, Handle, Handle, Handle, i32, *mut HeuristicResult, *mut i32
        );
        cublasLtMatmul(
            Handle, Handle, *const c_void, DevicePtr, Handle, DevicePtr, Handle, *const c_void, DevicePtr, Handle,
            DevicePtr, Handle, *const Algorithm, DevicePtr, usize, Handle
        );
    }
}

table! {
    /// NCCL. `ncclComm_t` is a handle.
    NcclApi {
        ncclGetVersion(*mut i32);
        ncclGetErrorString(Code) -> *const c_char;
        ncclGetLastError(Handle) -> *const c_char;
        ncclGetUniqueId(*mut NcclUniqueId);
        ncclCommInitRankConfig(*mut Handle, i32, NcclUniqueId, i32, *mut NcclConfig);
        ncclCommGetAsyncError(Handle, *mut Code);
        ncclAllReduce(DevicePtr, DevicePtr, usize, i32, i32, Handle, Handle);
        ncclBroadcast(DevicePtr, DevicePtr, usize, i32, i32, Handle, Handle);
        ncclCommFinalize(Handle);
        ncclCommDestroy(Handle);
        ncclCommAbort(Handle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_have_the_sizes_of_the_c_headers() {
        assert_eq!(size_of::<PoolProps>(), 88);
        assert_eq!(std::mem::offset_of!(PoolProps, max_bytes), 24);
        assert_eq!(size_of::<Access>(), 12);
        assert_eq!(size_of::<HeuristicResult>(), 96);
        assert_eq!(std::mem::offset_of!(HeuristicResult, state), 72);
        assert_eq!((size_of::<NcclUniqueId>(), align_of::<NcclUniqueId>()), (128, 1));
    }

    #[test]
    fn the_config_of_nccl_has_the_layout_and_the_header_of_its_2_18() {
        assert_eq!(size_of::<NcclConfig>(), 48);
        assert_eq!(std::mem::offset_of!(NcclConfig, blocking), 16);
        assert_eq!(std::mem::offset_of!(NcclConfig, net_name), 32);
        assert_eq!(std::mem::offset_of!(NcclConfig, split_share), 40);
        let config = NcclConfig::non_blocking();
        assert_eq!((config.size, config.magic, config.version, config.blocking), (48, 0xcafe_beef, 21800, 0));
        let undefined =
            [config.cga_cluster_size, config.min_ctas, config.max_ctas, config.split_share, config.traffic_class];
        assert_eq!(undefined, [i32::MIN; 5]);
        assert!(config.net_name.is_null());
    }
}
