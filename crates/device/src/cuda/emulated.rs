//! A CUDA driver that works, in host memory: contexts, pools, streams, events and copies, without kernels. Work is done when
//! it is queued. Handles are unique, and those of destroyed pools are used again, as real drivers do.
//!
//! Its state is of one thread, so that tests do not interfere.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_uint, c_void};
use std::path::PathBuf;
use std::time::Instant;

use super::api::{Access, Code, DevicePtr, DriverApi, Handle, MemLocation, PoolProps};
use super::contexts::{self, ListedCard};
use super::gemms::LazyCublas;
use super::init::InitializedDriver;
use super::modules::Cubins;
use super::nccl::LazyNccl;
use super::{CudaDriver, fake};
use crate::card::Card;
use crate::library::{FoundLibrary, Search};

thread_local! {
    static NEXT: Cell<Handle> = const { Cell::new(0x1_0000) };
    static CURRENT: Cell<Handle> = const { Cell::new(0) };
    static STATE: RefCell<Emulated> = RefCell::default();
}

#[derive(Default)]
struct Emulated {
    /// What is alive, by handle, with the name of the function that made it.
    alive: BTreeMap<Handle, &'static str>,
    memory: HashMap<Handle, Vec<u8>>,
    reached: HashMap<Handle, Instant>,
    /// Handles of destroyed pools.
    free_pools: Vec<Handle>,
    /// Access of devices to pools. It outlives the pool.
    access: HashMap<(Handle, i32), c_uint>,
}

/// What is alive, by the function that made it.
pub(super) fn alive() -> Vec<&'static str> {
    STATE.with_borrow(|state| state.alive.values().copied().collect())
}

/// Forgets everything: what the last test left behind, too.
pub(super) fn reset() {
    STATE.take();
    CURRENT.set(0);
}

/// A driver of two cards with these functions.
pub(super) fn driver(api: DriverApi) -> CudaDriver {
    let found = FoundLibrary { name: "libcuda.so.1".into(), path: PathBuf::from("emulated"), version: None };
    let initialized = InitializedDriver { api, found, version: 13000, visible: Vec::new() };
    let nowhere = Search::only_under(&PathBuf::from("no such folder"));
    let (cubins, blas, nccl) = (Cubins::new(&nowhere), LazyCublas::new(&nowhere), LazyNccl::new(&nowhere));
    CudaDriver::assemble(initialized, None, cards(), cubins, blas, nccl)
}

fn cards() -> Vec<ListedCard> {
    let card = |index: usize| Card {
        index,
        name: "emulated".into(),
        uuid: format!("GPU-{index}"),
        bus_id: format!("0000:{index}7:00.0"),
        total_bytes: 24 << 30,
        capability: (9, 0),
        hidden_by: None,
    };
    contexts::listed((0..2).map(|index| (card(index), Some(index as i32))).collect())
}

/// The functions. Those that are not emulated log their calls and do nothing.
pub(super) fn api() -> DriverApi {
    DriverApi {
        cuDeviceCanAccessPeer,
        cuDevicePrimaryCtxRetain,
        cuDevicePrimaryCtxRelease_v2,
        cuCtxGetCurrent,
        cuCtxSetCurrent,
        cuMemAlloc_v2,
        cuMemFree_v2,
        cuMemPoolCreate,
        cuMemPoolDestroy,
        cuMemPoolSetAccess,
        cuMemPoolGetAccess,
        cuMemAllocFromPoolAsync,
        cuMemFreeAsync,
        cuMemHostAlloc,
        cuMemFreeHost,
        cuStreamCreateWithPriority,
        cuStreamDestroy_v2,
        cuEventCreate,
        cuEventDestroy_v2,
        cuEventRecord,
        cuEventElapsedTime,
        cuMemcpyHtoDAsync_v2,
        cuMemcpyDtoHAsync_v2,
        cuMemcpyDtoDAsync_v2,
        cuMemcpyPeerAsync,
        cuMemsetD8Async,
        ..fake::api()
    }
}

fn make(place: *mut Handle, what: &'static str) -> Code {
    NEXT.set(NEXT.get() + 16);
    STATE.with_borrow_mut(|state| state.alive.insert(NEXT.get(), what));
    put(place, NEXT.get())
}

/// Ends the life of a handle; one that is not alive is an invalid handle.
fn end(handle: Handle) -> Code {
    let was_alive = STATE.with_borrow_mut(|state| state.alive.remove(&handle).is_some());
    if was_alive { 0 } else { 400 }
}

fn put<T>(place: *mut T, value: T) -> Code {
    // SAFETY: the driver under test passes the address of a live local.
    unsafe { place.write(value) };
    0
}

/// Host memory in the place of device or pinned memory: its address is its handle.
fn allocate(bytes: usize, what: &'static str) -> Handle {
    STATE.with_borrow_mut(|state| {
        let memory = vec![0; bytes];
        let at = memory.as_ptr() as Handle;
        state.memory.insert(at, memory);
        state.alive.insert(at, what);
        at
    })
}

fn free(at: Handle) -> Code {
    STATE.with_borrow_mut(|state| state.memory.remove(&at));
    end(at)
}

fn copy(to: *mut c_void, from: *const c_void, bytes: usize) -> Code {
    // SAFETY: both ranges are in memory of this driver that is alive, which the shim checks before.
    unsafe { std::ptr::copy(from.cast::<u8>(), to.cast::<u8>(), bytes) };
    0
}

macro_rules! emulate {
    ($($name:ident($($arg:ident: $type:ty),*) $result:expr;)*) => {$(
        #[expect(non_snake_case, reason = "the driver's own name")]
        unsafe extern "C" fn $name($($arg: $type),*) -> Code {
            $result
        }
    )*};
}

emulate! {
    cuDeviceCanAccessPeer(place: *mut i32, a: i32, b: i32) put(place, i32::from(a != b));
    cuDevicePrimaryCtxRetain(place: *mut Handle, device: i32) {
        let context = 0x100 + device as Handle;
        STATE.with_borrow_mut(|state| state.alive.insert(context, "context"));
        put(place, context)
    };
    cuDevicePrimaryCtxRelease_v2(device: i32) end(0x100 + device as Handle);
    cuCtxGetCurrent(place: *mut Handle) put(place, CURRENT.get());
    cuCtxSetCurrent(context: Handle) { CURRENT.set(context); 0 };

    cuMemAlloc_v2(place: *mut DevicePtr, bytes: usize) put(place, allocate(bytes, "memory") as DevicePtr);
    cuMemFree_v2(at: DevicePtr) free(at as Handle);
    cuMemPoolCreate(place: *mut Handle, _props: *const PoolProps) {
        match STATE.with_borrow_mut(|state| state.free_pools.pop()) {
            Some(recycled) => {
                STATE.with_borrow_mut(|state| state.alive.insert(recycled, "pool"));
                put(place, recycled)
            }
            None => make(place, "pool"),
        }
    };
    cuMemPoolDestroy(pool: Handle) {
        STATE.with_borrow_mut(|state| state.free_pools.push(pool));
        end(pool)
    };
    cuMemPoolSetAccess(pool: Handle, access: *const Access, _count: usize) {
        // SAFETY: the driver under test passes the address of a live local.
        let access = unsafe { *access };
        let key = (pool, access.location.ordinal);
        STATE.with_borrow_mut(|state| state.access.insert(key, access.flags as c_uint));
        0
    };
    cuMemPoolGetAccess(place: *mut c_uint, pool: Handle, location: *mut MemLocation) {
        // SAFETY: as above.
        let key = (pool, unsafe { *location }.ordinal);
        put(place, STATE.with_borrow(|state| state.access.get(&key).copied().unwrap_or(0)))
    };
    cuMemAllocFromPoolAsync(place: *mut DevicePtr, bytes: usize, _pool: Handle, _stream: Handle)
        put(place, allocate(bytes, "memory of a pool") as DevicePtr);
    cuMemFreeAsync(at: DevicePtr, _stream: Handle) free(at as Handle);
    cuMemHostAlloc(place: *mut *mut c_void, bytes: usize, _flags: c_uint)
        put(place, allocate(bytes, "pinned memory") as *mut c_void);
    cuMemFreeHost(at: *mut c_void) free(at as Handle);

    cuStreamCreateWithPriority(place: *mut Handle, _flags: c_uint, _priority: i32) make(place, "stream");
    cuStreamDestroy_v2(stream: Handle) end(stream);
    cuEventCreate(place: *mut Handle, _flags: c_uint) make(place, "event");
    cuEventDestroy_v2(event: Handle) {
        STATE.with_borrow_mut(|state| state.reached.remove(&event));
        end(event)
    };
    cuEventRecord(event: Handle, _stream: Handle) {
        STATE.with_borrow_mut(|state| state.reached.insert(event, Instant::now()));
        0
    };
    cuEventElapsedTime(place: *mut f32, from: Handle, to: Handle) {
        let times = STATE.with_borrow(|state| [from, to].map(|event| state.reached.get(&event).copied()));
        match times {
            [Some(from), Some(to)] => put(place, to.saturating_duration_since(from).as_secs_f32() * 1e3),
            _ => 400,
        }
    };

    cuMemcpyHtoDAsync_v2(to: DevicePtr, from: *const c_void, bytes: usize, _stream: Handle)
        copy(to as *mut c_void, from, bytes);
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: DevicePtr, bytes: usize, _stream: Handle)
        copy(to, from as *const c_void, bytes);
    cuMemcpyDtoDAsync_v2(to: DevicePtr, from: DevicePtr, bytes: usize, _stream: Handle)
        copy(to as *mut c_void, from as *const c_void, bytes);
    cuMemcpyPeerAsync(
        to: DevicePtr, _to_context: Handle, from: DevicePtr, _from_context: Handle, bytes: usize, _stream: Handle
    )
        copy(to as *mut c_void, from as *const c_void, bytes);
    cuMemsetD8Async(at: DevicePtr, value: u8, bytes: usize, _stream: Handle) {
        // SAFETY: the range is in memory of this driver that is alive, which the shim checks before.
        unsafe { std::ptr::write_bytes(at as *mut u8, value, bytes) };
        0
    };
}
