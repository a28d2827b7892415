//! A fake CUDA driver that does nothing and logs its calls: two cards, whose CUDA order differs from their bus order.
//!
//! The log and the injected results are per thread, so that tests do not interfere.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::path::PathBuf;

use super::api::{
    Access, Algorithm, Code, CublasLtApi, DevicePtr, DriverApi, Handle, HeuristicResult, MemLocation, NcclApi,
    NcclConfig, NcclUniqueId, PoolProps, Uuid,
};
use super::cublas::CublasLt;
use super::gemms::LazyCublas;
use super::init::{self, InitializedDriver, Visible};
use super::modules::Cubins;
use super::nccl::{IN_PROGRESS, LazyNccl, Nccl};
use super::{CudaDriver, contexts};
use crate::card::Card;
use crate::library::{FoundLibrary, Search};

/// The stream that another library captures.
pub(super) const CAPTURED: Handle = 999;

thread_local! {
    static CALLS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static INJECTED: RefCell<HashMap<&'static str, Code>> = RefCell::new(HashMap::new());
    static NEXT: Cell<Handle> = const { Cell::new(100) };
    /// The matmul descriptor with a bias epilogue.
    static WITH_BIAS: Cell<Handle> = const { Cell::new(0) };
    static REFUSES_BIAS: Cell<bool> = const { Cell::new(false) };
    static ELAPSED_MS: Cell<f32> = const { Cell::new(1.5) };
    /// The current context of this thread.
    static CURRENT: Cell<Handle> = const { Cell::new(0) };
    /// Access of other devices that new pools have from the start.
    static INHERITED: Cell<c_uint> = const { Cell::new(0) };
    /// The capture mode of this thread; a new one has the global mode.
    static CAPTURE_MODE: Cell<i32> = const { Cell::new(0) };
    /// For how many more polls NCCL is busy.
    static BUSY_POLLS: Cell<u32> = const { Cell::new(0) };
    /// The asynchronous error of NCCL.
    static ASYNC_ERROR: Cell<Code> = const { Cell::new(0) };
    /// The environment that NCCL reads.
    static VARIABLES: RefCell<HashMap<&'static str, &'static str>> =
        RefCell::new(HashMap::from([("NCCL_NVLS_ENABLE", "0"), ("NCCL_ALGO", "Ring")]));
}

/// The calls since the last call of this, in order.
pub(super) fn calls() -> Vec<String> {
    CALLS.with_borrow_mut(std::mem::take)
}

/// From now on `function` returns `code` (0: works again) and does nothing.
pub(super) fn inject_result(function: &'static str, code: Code) {
    INJECTED.with_borrow_mut(|injected| injected.insert(function, code));
}

/// From now on this is the time between any two events.
pub(super) fn elapse(ms: f32) {
    ELAPSED_MS.set(ms);
}

/// From now on new pools have the access of a destroyed one.
pub(super) fn inherit_access(flags: c_uint) {
    INHERITED.set(flags);
}

/// From the next call on, NCCL is busy for as many polls.
pub(super) fn keep_nccl_busy(polls: u32) {
    BUSY_POLLS.set(polls);
}

/// From now on, this is the asynchronous error of NCCL.
pub(super) fn inject_async_error(code: Code) {
    ASYNC_ERROR.set(code);
}

/// From now on the variable has this value in the environment that NCCL reads.
pub(super) fn set_variable(name: &'static str, value: Option<&'static str>) {
    VARIABLES.with_borrow_mut(|variables| match value {
        Some(value) => variables.insert(name, value),
        None => variables.remove(name),
    });
}

/// Another library makes its context current on this thread.
pub(super) fn switch_context(context: Handle) {
    CURRENT.set(context);
}

/// Two cards. CUDA's device 0 comes after its device 1 in bus order, so card 0 is device 1.
pub(super) fn driver() -> CudaDriver {
    let card = |device: i32, bus: &str| Visible {
        device,
        card: Card {
            index: 0,
            name: "fake".into(),
            uuid: format!("GPU-{device}"),
            bus_id: bus.into(),
            total_bytes: 24 << 30,
            capability: (9, 0),
            hidden_by: None,
        },
    };
    let found = FoundLibrary { name: "libcuda.so.1".into(), path: PathBuf::from("fake"), version: None };
    let visible = vec![card(0, "0000:81:00.0"), card(1, "0000:17:00.0")];
    let nowhere = Search::only_under(&PathBuf::from("no such folder"));
    let initialized = InitializedDriver { api: api(), found, version: 13000, visible };
    let found = FoundLibrary { name: "libcublasLt.so.13".into(), path: PathBuf::from("fake"), version: None };
    let blas = LazyCublas::opened(CublasLt { api: blas_api(), found });
    let cards = contexts::listed(init::match_devices(None, &initialized.visible, "nothing"));
    CudaDriver::assemble(initialized, None, cards, Cubins::new(&nowhere), blas, nccl())
}

/// The first of those cards, shown as two.
pub(super) fn driver_with_two_contexts() -> CudaDriver {
    let driver = driver();
    let matched = driver.cards.iter().cloned().zip(driver.cuda_cards.iter().map(|card| card.device)).collect();
    let cards = contexts::shown_twice(contexts::listed(matched));
    let found = FoundLibrary { name: "libcuda.so.1".into(), path: PathBuf::from("fake"), version: None };
    let initialized = InitializedDriver { api: api(), found, version: 13000, visible: Vec::new() };
    let nowhere = Search::only_under(&PathBuf::from("no such folder"));
    CudaDriver::assemble(initialized, None, cards, Cubins::new(&nowhere), LazyCublas::new(&nowhere), nccl())
}

fn nccl() -> LazyNccl {
    let (name, version) = ("libnccl.so.2".into(), Some("2.28.9".into()));
    let found = FoundLibrary { name, path: PathBuf::from("fake"), version };
    let variable = |name: &str| VARIABLES.with_borrow(|variables| variables.get(name).map(ToString::to_string));
    LazyNccl::opened(Nccl { api: nccl_api(), found }, variable)
}

#[expect(non_snake_case, reason = "the driver's own name")]
unsafe extern "C" fn cuCtxGetCurrent(out: *mut Handle) -> Code {
    put(out, CURRENT.get())
}

macro_rules! fakes {
    ($make:ident -> $table:ident [$($other:ident),*] $($name:ident($($arg:ident: $type:ty),*) $text:expr, $result:expr;)*) => {
        $(
            #[expect(non_snake_case, reason = "the driver's own name")]
            unsafe extern "C" fn $name($($arg: $type),*) -> Code {
                let text: String = $text;
                let entry = format!("{} {text}", stringify!($name));
                CALLS.with_borrow_mut(|calls| calls.push(entry.trim_end().to_string()));
                let injected = INJECTED.with_borrow(|injected| injected.get(stringify!($name)).copied());
                if let Some(code) = injected.filter(|&code| code != 0) {
                    return code;
                }
                $result
            }
        )*

        pub(super) fn $make() -> $table {
            $table { $($other,)* $($name),* }
        }
    };
}

fn put<T>(place: *mut T, value: T) -> Code {
    // SAFETY: the driver under test passes the address of a live local.
    unsafe { place.write(value) };
    0
}

fn name_of(code: Code) -> *const c_char {
    let name: &CStr = if code == 1 { c"CUDA_ERROR_INVALID_VALUE" } else { c"CUDA_ERROR_OTHER" };
    name.as_ptr()
}

fn none() -> String {
    String::new()
}

/// Argument `i` of a launch as a u64; the kernel would read as many bytes as its parameter has.
fn launched(args: *mut *mut c_void, i: usize) -> u64 {
    // SAFETY: the tests launch with up to five arguments of eight bytes each; the rest of the list is null.
    unsafe {
        let arg = *args.add(i);
        if arg.is_null() { 0 } else { arg.cast::<u64>().read() }
    }
}

fakes! {
    api -> DriverApi [cuCtxGetCurrent]
    cuGetErrorName(code: Code, out: *mut *const c_char) none(), put(out, name_of(code));
    cuGetErrorString(_code: Code, _out: *mut *const c_char) none(), 1;
    cuDeviceGetCount(out: *mut i32) none(), put(out, 2);
    cuDeviceGet(out: *mut i32, ordinal: i32) none(), put(out, ordinal);
    cuDeviceGetName(_out: *mut c_char, _bytes: i32, _device: i32) none(), 0;
    cuDeviceGetUuid_v2(_out: *mut Uuid, _device: i32) none(), 0;
    cuDeviceGetPCIBusId(_out: *mut c_char, _bytes: i32, _device: i32) none(), 0;
    cuDeviceTotalMem_v2(out: *mut usize, _device: i32) none(), put(out, 24 << 30);
    cuDeviceGetAttribute(out: *mut i32, _attribute: i32, _device: i32) none(), put(out, 9);
    cuDeviceCanAccessPeer(out: *mut i32, a: i32, b: i32) format!("{a} {b}"), put(out, i32::from(a != b));
    cuDeviceGetP2PAttribute(out: *mut i32, attribute: i32, a: i32, b: i32)
        format!("{attribute} {a} {b}"), put(out, i32::from(attribute != 4));

    cuDevicePrimaryCtxRetain(out: *mut Handle, device: i32) format!("{device}"), put(out, 100 + device as usize);
    cuDevicePrimaryCtxRelease_v2(device: i32) format!("{device}"), 0;
    cuCtxCreate_v2(out: *mut Handle, flags: c_uint, device: i32)
        format!("{flags} {device}"), { let context = 200 + next_handle(); CURRENT.set(context); put(out, context) };
    cuCtxDestroy_v2(_context: Handle) none(), 0;
    cuCtxSetCurrent(context: Handle) format!("{context}"), { CURRENT.set(context); 0 };
    cuCtxGetStreamPriorityRange(least: *mut i32, greatest: *mut i32) none(), { put(least, 0); put(greatest, -5) };

    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) none(), { put(free, 7 << 20); put(total, 24 << 30) };
    cuMemAlloc_v2(out: *mut DevicePtr, bytes: usize) format!("{bytes}"), put(out, 0x5000);
    cuMemFree_v2(at: DevicePtr) format!("{at:#x}"), 0;
    cuMemPoolCreate(out: *mut Handle, props: *const PoolProps)
        // SAFETY: the driver under test passes the address of a live local.
        { let props = unsafe { *props }; format!("{:?} {}", props.location, props.max_bytes) }, put(out, 50);
    cuMemPoolDestroy(pool: Handle) format!("{pool}"), 0;
    cuMemPoolSetAccess(pool: Handle, access: *const Access, count: usize)
        // SAFETY: as above.
        { let access = unsafe { *access }; format!("{pool} {:?} {} {count}", access.location, access.flags) }, 0;
    cuMemPoolGetAccess(out: *mut c_uint, pool: Handle, _location: *mut MemLocation)
        format!("{pool}"), put(out, INHERITED.get());
    cuMemAllocFromPoolAsync(out: *mut DevicePtr, bytes: usize, pool: Handle, stream: Handle)
        format!("{bytes} {pool} {stream}"), put(out, 0x1000);
    cuMemFreeAsync(at: DevicePtr, stream: Handle) format!("{at:#x} {stream}"), 0;
    cuMemHostAlloc(out: *mut *mut c_void, bytes: usize, flags: c_uint)
        format!("{bytes} {flags}"), put(out, std::ptr::dangling_mut::<u64>().cast());
    cuMemFreeHost(_at: *mut c_void) none(), 0;
    cuPointerGetAttribute(out: *mut c_void, attribute: i32, at: DevicePtr)
        format!("{attribute} {at:#x}"), put(out.cast::<i32>(), 0);

    cuStreamCreateWithPriority(out: *mut Handle, flags: c_uint, priority: i32)
        format!("{flags} {priority}"), put(out, 10);
    cuStreamDestroy_v2(stream: Handle) format!("{stream}"), 0;
    cuStreamQuery(stream: Handle) format!("{stream}"), 0;
    cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) format!("{stream} {event}"), 0;
    cuEventCreate(out: *mut Handle, flags: c_uint) format!("{flags}"), put(out, 20);
    cuEventDestroy_v2(event: Handle) format!("{event}"), 0;
    cuEventRecord(event: Handle, stream: Handle) format!("{event} {stream}"), 0;
    cuEventQuery(event: Handle) format!("{event}"), 0;
    cuEventSynchronize(event: Handle) format!("{event}"), 0;
    cuEventElapsedTime(out: *mut f32, _from: Handle, _to: Handle) none(), put(out, ELAPSED_MS.get());

    cuMemcpyHtoDAsync_v2(to: DevicePtr, _from: *const c_void, bytes: usize, stream: Handle)
        format!("{to:#x} {bytes} {stream}"), 0;
    cuMemcpyDtoHAsync_v2(_to: *mut c_void, from: DevicePtr, bytes: usize, stream: Handle)
        format!("{from:#x} {bytes} {stream}"), 0;
    cuMemcpyDtoDAsync_v2(to: DevicePtr, from: DevicePtr, bytes: usize, stream: Handle)
        format!("{to:#x} {from:#x} {bytes} {stream}"), 0;
    cuMemcpyPeerAsync(to: DevicePtr, to_ctx: Handle, from: DevicePtr, from_ctx: Handle, bytes: usize, stream: Handle)
        format!("{to:#x} {to_ctx} {from:#x} {from_ctx} {bytes} {stream}"), 0;
    cuMemsetD8Async(at: DevicePtr, value: u8, bytes: usize, stream: Handle)
        format!("{at:#x} {value} {bytes} {stream}"), 0;

    cuModuleLoadData(out: *mut Handle, _image: *const c_void) none(), put(out, 30);
    cuModuleUnload(module: Handle) format!("{module}"), 0;
    cuModuleGetFunction(out: *mut Handle, module: Handle, name: *const c_char)
        // SAFETY: the name ends in NUL.
        format!("{module} {}", unsafe { CStr::from_ptr(name) }.to_string_lossy()), put(out, 40);
    cuFuncSetAttribute(function: Handle, attribute: i32, value: i32) format!("{function} {attribute} {value}"), 0;
    cuLaunchKernel(
        function: Handle, x: c_uint, y: c_uint, z: c_uint, threads: c_uint, _ty: c_uint, _tz: c_uint,
        shared: c_uint, stream: Handle, args: *mut *mut c_void, _extra: *mut *mut c_void
    )
        format!("{function} {x},{y},{z} {threads} {shared} {stream} {:x?}", [0, 1, 2, 3, 4].map(|i| launched(args, i))), 0;

    cuThreadExchangeStreamCaptureMode(mode: *mut i32)
        // SAFETY: the driver under test passes the address of a live local.
        format!("{}", unsafe { *mode }), put(mode, CAPTURE_MODE.replace(unsafe { *mode }));
    cuStreamIsCapturing(stream: Handle, out: *mut i32) format!("{stream}"), put(out, i32::from(stream == CAPTURED));
    cuStreamBeginCapture_v2(stream: Handle, mode: i32) format!("{stream} {mode}"), 0;
    cuStreamEndCapture(stream: Handle, out: *mut Handle) format!("{stream}"), put(out, 60);
    cuGraphInstantiateWithFlags(out: *mut Handle, graph: Handle, flags: u64) format!("{graph} {flags}"), put(out, 61);
    cuGraphDestroy(graph: Handle) format!("{graph}"), 0;
    cuGraphUpload(ready: Handle, stream: Handle) format!("{ready} {stream}"), 0;
    cuGraphLaunch(ready: Handle, stream: Handle) format!("{ready} {stream}"), 0;
    cuGraphExecDestroy(ready: Handle) format!("{ready}"), 0;
}

#[expect(non_snake_case, reason = "the library's own name")]
unsafe extern "C" fn cublasLtGetVersion() -> usize {
    130_100
}

#[expect(non_snake_case, reason = "the library's own name")]
unsafe extern "C" fn cublasLtGetStatusString(_code: Code) -> *const c_char {
    c"CUBLAS_STATUS_FAKE".as_ptr()
}

/// The value of an attribute as a number.
fn attribute(value: *const c_void, bytes: usize) -> u64 {
    // SAFETY: the driver under test passes a live local of that length.
    unsafe {
        match bytes {
            4 => value.cast::<u32>().read().into(),
            _ => value.cast::<u64>().read(),
        }
    }
}

fn number(value: *const c_void) -> f32 {
    // SAFETY: as above, an f32.
    unsafe { value.cast::<f32>().read() }
}

fn first_word(algorithm: *const Algorithm) -> u64 {
    // SAFETY: the driver under test passes the address of a live algorithm.
    unsafe { (*algorithm).0[0] }
}

/// One algorithm; none after `refuse_bias` for a GEMM with a bias.
fn suggest(desc: Handle, out: *mut HeuristicResult, count: *mut i32) -> Code {
    let refused = REFUSES_BIAS.get() && desc == WITH_BIAS.get();
    if refused {
        return put(count, 0);
    }
    let mut suggestion = HeuristicResult::default();
    (suggestion.algorithm, suggestion.workspace_bytes) = (Algorithm([7; 8]), 4096);
    put(out, suggestion);
    put(count, 1)
}

/// From now on the library has no algorithm that adds a bias.
pub(super) fn refuse_bias() {
    REFUSES_BIAS.set(true);
}

fn next_handle() -> Handle {
    NEXT.set(NEXT.get() + 1);
    NEXT.get()
}

fakes! {
    blas_api -> CublasLtApi [cublasLtGetVersion, cublasLtGetStatusString]
    cublasLtCreate(out: *mut Handle) none(), put(out, 70);
    cublasLtDestroy(handle: Handle) format!("{handle}"), 0;
    cublasLtMatmulDescCreate(out: *mut Handle, compute: i32, scale: i32) format!("{compute} {scale}"), put(out, next_handle());
    cublasLtMatmulDescDestroy(_desc: Handle) none(), 0;
    cublasLtMatmulDescSetAttribute(desc: Handle, which: i32, value: *const c_void, bytes: usize)
        format!("{which}={:#x}", attribute(value, bytes)),
        { if which == 7 { WITH_BIAS.set(desc); } 0 };
    cublasLtMatrixLayoutCreate(out: *mut Handle, dtype: i32, rows: u64, columns: u64, stride: i64)
        format!("{dtype} {rows}x{columns} every {stride}"), put(out, next_handle());
    cublasLtMatrixLayoutDestroy(_layout: Handle) none(), 0;
    cublasLtMatrixLayoutSetAttribute(_layout: Handle, which: i32, value: *const c_void, bytes: usize)
        format!("{which}={}", attribute(value, bytes)), 0;
    cublasLtMatmulPreferenceCreate(out: *mut Handle) none(), put(out, next_handle());
    cublasLtMatmulPreferenceDestroy(_wish: Handle) none(), 0;
    cublasLtMatmulPreferenceSetAttribute(_wish: Handle, which: i32, value: *const c_void, bytes: usize)
        format!("{which}={}", attribute(value, bytes)), 0;
    cublasLtMatmulAlgoGetHeuristic(
        _handle: Handle, desc: Handle, _a: Handle, _b: Handle, _c: Handle, _d: Handle, _wish: Handle, asked: i32,
        out: *mut HeuristicResult, count: *mut i32
    )
        format!("{asked}"), suggest(desc, out, count);
    cublasLtMatmul(
        handle: Handle, _desc: Handle, alpha: *const c_void, a: DevicePtr, _la: Handle, b: DevicePtr, _lb: Handle,
        beta: *const c_void, c: DevicePtr, _lc: Handle, d: DevicePtr, _ld: Handle, algorithm: *const Algorithm,
        workspace: DevicePtr, bytes: usize, stream: Handle
    )
        format!("{handle} {}·{a:#x}·{b:#x} + {}·{c:#x} to {d:#x} by {} with {workspace:#x}+{bytes} on {stream}",
            number(alpha), number(beta), first_word(algorithm)), 0;
}

#[expect(non_snake_case, reason = "the library's own name")]
unsafe extern "C" fn ncclGetErrorString(_code: Code) -> *const c_char {
    c"an error of NCCL".as_ptr()
}

#[expect(non_snake_case, reason = "the library's own name")]
unsafe extern "C" fn ncclGetLastError(_communicator: Handle) -> *const c_char {
    c"the last message".as_ptr()
}

/// The result of a call that a thread of NCCL works on.
fn started() -> Code {
    if BUSY_POLLS.get() > 0 { IN_PROGRESS } else { 0 }
}

fn polled() -> Code {
    match BUSY_POLLS.get() {
        0 => ASYNC_ERROR.get(),
        polls => {
            BUSY_POLLS.set(polls - 1);
            IN_PROGRESS
        }
    }
}

fakes! {
    nccl_api -> NcclApi [ncclGetErrorString, ncclGetLastError]
    ncclGetVersion(out: *mut i32) none(), put(out, 22809);
    ncclGetUniqueId(out: *mut NcclUniqueId) none(), put(out, NcclUniqueId([9; 128]));
    ncclCommInitRankConfig(out: *mut Handle, size: i32, id: NcclUniqueId, rank: i32, config: *mut NcclConfig)
        // SAFETY: the driver under test passes the address of a live local.
        { let blocking = unsafe { (*config).blocking }; format!("{rank}/{size} id {} {blocking}", id.0[127]) },
        { put(out, 80); started() };
    ncclCommGetAsyncError(communicator: Handle, out: *mut Code) format!("{communicator}"), put(out, polled());
    ncclAllReduce(
        from: DevicePtr, to: DevicePtr, count: usize, dtype: i32, op: i32, communicator: Handle, stream: Handle
    )
        format!("{from:#x} {to:#x} {count} {dtype} {op} {communicator} {stream}"), started();
    ncclBroadcast(
        from: DevicePtr, to: DevicePtr, count: usize, dtype: i32, root: i32, communicator: Handle, stream: Handle
    )
        format!("{from:#x} {to:#x} {count} {dtype} {root} {communicator} {stream}"), started();
    ncclCommFinalize(communicator: Handle) format!("{communicator}"), started();
    ncclCommDestroy(communicator: Handle) format!("{communicator}"), 0;
    ncclCommAbort(communicator: Handle) format!("{communicator}"), { BUSY_POLLS.set(0); 0 };
}
