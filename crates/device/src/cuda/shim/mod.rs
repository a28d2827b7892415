//! A shim around the driver's functions: checks the rules of two cards on every call, and injects their faults.
//!
//! One card, or a fake driver, forgives what two cards do not. The shim keeps a registry of handles and memory ([`registry`]) and
//! answers as the driver would: an event of one card recorded on a stream of the other is refused, and so is memory that was
//! never opened to the card that accesses it. Faults are injected below our code, where the driver would have them
//! ([`DriverFault`]).
//!
//! `TANDEM_CUDA_SHIM=1` installs it in any command. With it, a trap (`TANDEM_FAULT`) loses the one context only: a real trap
//! takes every context of the card with it. Every call then takes a lock: it is for tests.

mod registry;
#[cfg(test)]
mod campaign;

use std::collections::HashSet;
use std::ffi::{c_char, c_uint, c_void};
use std::sync::{Mutex, OnceLock};

use self::registry::{Kind, Registry};
use super::api::{Access, Code, DevicePtr, DriverApi, Handle, NOT_READY, OUT_OF_MEMORY, PoolProps};
use crate::driver::PeerCall;
use crate::machine::lock;

/// Installs the shim if it is set.
const CUDA_SHIM: &str = "TANDEM_CUDA_SHIM";

/// `CUDA_ERROR_UNKNOWN`, which a card that fell off the bus returns.
const UNKNOWN: Code = 999;

/// A fault that the shim injects. Cards are named by their contexts.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(not(test), expect(dead_code, reason = "only a lost card is injected outside tests"))]
pub(super) enum DriverFault {
    /// Copies between two cards by this call report success and write nothing; `with_access`: only where there is access.
    CopiesNothing { call: PeerCall, with_access: bool },
    /// Access to a memory pool is refused with this code.
    RefusesAccess(Code),
    /// The card returns this code from its Nth call on.
    Fails { context: Handle, after_calls: u64, code: Code },
    /// Events of the card that are recorded from now on are never reached, and its streams never become idle.
    NeverReached { context: Handle },
    /// The Nth allocation is refused.
    OutOfMemory { allocation: u64 },
    /// The clock of the card is so many parts per million fast.
    Skewed { context: Handle, ppm: f32 },
}

/// Whether the environment asks for the shim.
pub(super) fn is_wanted() -> bool {
    std::env::var_os(CUDA_SHIM).is_some_and(|value| !value.is_empty() && value != "0")
}

/// The functions of `inner` behind the shim. A process has one shim: the first table stays.
pub(super) fn install(inner: DriverApi) -> DriverApi {
    SHIM.get_or_init(|| Shim { inner, state: Mutex::default() });
    wrapped(inner)
}

/// From now on every call of the context fails, as if its card had fallen off the bus.
pub(super) fn lose(context: Handle) {
    with_state(|state| state.lost.push((context, UNKNOWN)));
}

static SHIM: OnceLock<Shim> = OnceLock::new();

struct Shim {
    inner: DriverApi,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    registry: Registry,
    fault: Option<DriverFault>,
    lost: Vec<(Handle, Code)>,
    /// Calls since the fault was injectioned: those of the card that it names.
    calls: u64,
    allocations: u64,
    /// Events that are never reached, and streams that wait for one.
    stuck_events: HashSet<Handle>,
    stuck_streams: HashSet<Handle>,
}

fn with_state<T>(work: impl FnOnce(&mut State) -> T) -> Option<T> {
    SHIM.get().map(|shim| work(&mut lock(&shim.state)))
}

/// The driver's functions behind the shim.
fn inner() -> &'static DriverApi {
    match SHIM.get() {
        Some(shim) => &shim.inner,
        None => unreachable!("the shim's functions are in a table that `install` made"),
    }
}

fn current() -> Handle {
    let mut context = 0;
    // SAFETY: one handle is written.
    unsafe { (inner().cuCtxGetCurrent)(&raw mut context) };
    context
}

impl State {
    /// Counts a call in `context`, and fails it if the card is lost. Calls that create or end a context name it themselves:
    /// whichever is current has nothing to do with them.
    fn call(&mut self, call: &str, context: Handle) -> Result<(), Code> {
        if CONTEXT_CALLS.contains(&call) {
            return Ok(());
        }
        if let Some(DriverFault::Fails { context: card, after_calls, code }) = self.fault
            && card == context
        {
            self.calls += 1;
            if self.calls > after_calls && !self.lost.contains(&(context, code)) {
                self.lost.push((context, code));
            }
        }
        self.lost.iter().find(|(lost, _)| *lost == context).map_or(Ok(()), |(_, code)| Err(*code))
    }

    fn close(&mut self, context: Handle) {
        let is_lost = self.lost.iter().any(|(lost, _)| *lost == context);
        self.registry.closed(context, is_lost);
    }

    fn allocation(&mut self) -> Result<(), Code> {
        let refused = self.fault == Some(DriverFault::OutOfMemory { allocation: self.allocations });
        self.allocations += 1;
        if refused { Err(OUT_OF_MEMORY) } else { Ok(()) }
    }

    /// Whether a copy between two cards writes nothing.
    fn copies_nothing(&self, copied_by: PeerCall, has_access: bool) -> bool {
        let is_it = |call, with_access| call == copied_by && with_access == has_access;
        matches!(self.fault, Some(DriverFault::CopiesNothing { call, with_access }) if is_it(call, with_access))
    }

    /// Whether the work of a stream never ends.
    fn is_stuck(&mut self, call: &str, stream: Handle) -> Result<bool, Code> {
        let context = self.registry.used(call, Kind::Stream, stream)?;
        Ok(self.fault == Some(DriverFault::NeverReached { context }) || self.stuck_streams.contains(&stream))
    }

    /// A call that would never return.
    fn would_hang(&mut self, call: &str) -> Code {
        self.registry.violation(call, UNKNOWN, "waits for work that never ends".to_owned())
    }
}

const CONTEXT_CALLS: [&str; 4] =
    ["cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2", "cuCtxCreate_v2", "cuCtxDestroy_v2"];

/// What the shim does with a call before it is passed on: an error is returned in its place, 0 included.
type Before = Result<(), Code>;

/// Wraps functions: the first expression checks the call, the second notes its result. Both see the state as the first name
/// and the name of the function as the second.
macro_rules! shims {
    ($(
        $name:ident($($arg:ident: $type:ty),*) |$state:ident, $call:ident| $before:expr, $after:expr;
    )*) => {
        $(
            #[expect(non_snake_case, reason = "the driver's own name")]
            unsafe extern "C" fn $name($($arg: $type),*) -> Code {
                let context = current();
                let checked = with_state(|$state| {
                    #[allow(unused_variables, reason = "few checks need the name")]
                    let $call = stringify!($name);
                    $state.call($call, context)?;
                    let checked: Before = $before;
                    checked
                });
                if let Some(Err(code)) = checked {
                    return code;
                }
                // SAFETY: the caller keeps the function's own contract.
                let code = unsafe { (inner().$name)($($arg),*) };
                if code == 0 {
                    with_state(|$state| {
                        #[allow(unused_variables, reason = "few notes need them")]
                        let ($call, context) = (stringify!($name), context);
                        ($after)($state, context);
                    });
                }
                code
            }
        )*

        fn wrapped(inner: DriverApi) -> DriverApi {
            DriverApi { $($name,)* ..inner }
        }
    };
}

/// Nothing to note.
fn nothing(_: &mut State, _: Handle) {}

/// What a function has written.
fn out<T: Copy>(place: *const T) -> T {
    // SAFETY: the driver has just written it, on success.
    unsafe { *place }
}

shims! {
    cuDevicePrimaryCtxRetain(place: *mut Handle, device: i32)
        |state, call| Ok(()), move |state: &mut State, _| state.registry.opened(out(place), device, true);
    cuCtxCreate_v2(place: *mut Handle, flags: c_uint, device: i32)
        |state, call| Ok(()), move |state: &mut State, _| state.registry.opened(out(place), device, false);
    cuCtxDestroy_v2(destroyed: Handle)
        |state, call| { state.close(destroyed); Ok(()) }, nothing;
    cuDevicePrimaryCtxRelease_v2(device: i32)
        |state, call| { state.registry.primary(device).into_iter().for_each(|context| state.close(context)); Ok(()) }, nothing;
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |state, call| Ok(()), nothing;

    cuMemAlloc_v2(place: *mut DevicePtr, bytes: usize)
        |state, call| state.allocation(),
        move |state: &mut State, context| state.registry.allocated(out(place), bytes, context, 0);
    cuMemFree_v2(at: DevicePtr) |state, call| state.registry.freed(call, at), nothing;
    cuMemPoolCreate(place: *mut Handle, props: *const PoolProps)
        |state, call| state.allocation(),
        move |state: &mut State, context| state.registry.created(Kind::Pool, out(place), context);
    cuMemPoolDestroy(pool: Handle) |state, call| state.registry.destroyed(call, Kind::Pool, pool), nothing;
    cuMemPoolSetAccess(pool: Handle, access: *const Access, count: usize)
        |state, call| {
            state.registry.used(call, Kind::Pool, pool)?;
            match state.fault {
                Some(DriverFault::RefusesAccess(code)) if out(access).flags != 0 => Err(code),
                _ => Ok(()),
            }
        },
        move |state: &mut State, _| {
            let Access { location, flags } = out(access);
            state.registry.set_access(pool, location.ordinal, flags != 0);
        };
    cuMemAllocFromPoolAsync(place: *mut DevicePtr, bytes: usize, pool: Handle, stream: Handle)
        |state, call| {
            state.registry.together(call, (Kind::Pool, pool), (Kind::Stream, stream))?;
            state.allocation()
        },
        move |state: &mut State, context| state.registry.allocated(out(place), bytes, context, pool);
    cuMemFreeAsync(at: DevicePtr, stream: Handle)
        |state, call| { state.registry.used(call, Kind::Stream, stream)?; state.registry.freed(call, at) }, nothing;
    cuMemHostAlloc(place: *mut *mut c_void, bytes: usize, flags: c_uint) |state, call| state.allocation(), nothing;
    cuMemFreeHost(at: *mut c_void) |state, call| Ok(()), nothing;

    cuStreamCreateWithPriority(place: *mut Handle, flags: c_uint, priority: i32)
        |state, call| Ok(()), move |state: &mut State, context| state.registry.created(Kind::Stream, out(place), context);
    cuStreamDestroy_v2(stream: Handle) |state, call| state.registry.destroyed(call, Kind::Stream, stream), nothing;
    cuStreamQuery(stream: Handle)
        |state, call| if state.is_stuck(call, stream)? { Err(NOT_READY) } else { Ok(()) }, nothing;
    cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint)
        |state, call| {
            state.registry.used(call, Kind::Stream, stream)?;
            state.registry.used(call, Kind::Event, event)?;
            if state.stuck_events.contains(&event) {
                state.stuck_streams.insert(stream);
            }
            Ok(())
        }, nothing;

    cuEventCreate(place: *mut Handle, flags: c_uint)
        |state, call| Ok(()), move |state: &mut State, context| state.registry.created(Kind::Event, out(place), context);
    cuEventDestroy_v2(event: Handle)
        |state, call| { state.stuck_events.remove(&event); state.registry.destroyed(call, Kind::Event, event) }, nothing;
    cuEventRecord(event: Handle, stream: Handle)
        |state, call| {
            state.registry.together(call, (Kind::Event, event), (Kind::Stream, stream))?;
            if state.is_stuck(call, stream)? { state.stuck_events.insert(event) } else { state.stuck_events.remove(&event) };
            Ok(())
        }, nothing;
    cuEventQuery(event: Handle)
        |state, call| {
            state.registry.used(call, Kind::Event, event)?;
            if state.stuck_events.contains(&event) { Err(NOT_READY) } else { Ok(()) }
        }, nothing;
    cuEventSynchronize(event: Handle)
        |state, call| {
            state.registry.used(call, Kind::Event, event)?;
            if state.stuck_events.contains(&event) { Err(state.would_hang(call)) } else { Ok(()) }
        }, nothing;
    cuEventElapsedTime(place: *mut f32, from: Handle, to: Handle)
        |state, call| state.registry.together(call, (Kind::Event, from), (Kind::Event, to)),
        move |state: &mut State, _| {
            let owner = state.registry.owner(Kind::Event, from);
            if let Some(DriverFault::Skewed { context, ppm }) = state.fault
                && owner == Some(context)
            {
                // SAFETY: the driver has just written it.
                unsafe { *place *= 1.0 + ppm / 1e6 };
            }
        };

    cuMemcpyHtoDAsync_v2(to: DevicePtr, from: *const c_void, bytes: usize, stream: Handle)
        |state, call| state.registry.accesses(call, stream, to, bytes).map(drop), nothing;
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: DevicePtr, bytes: usize, stream: Handle)
        |state, call| state.registry.accesses(call, stream, from, bytes).map(drop), nothing;
    cuMemcpyDtoDAsync_v2(to: DevicePtr, from: DevicePtr, bytes: usize, stream: Handle)
        |state, call| {
            let is_far = state.registry.accesses(call, stream, to, bytes)?;
            state.registry.accesses(call, stream, from, bytes)?;
            if is_far && state.copies_nothing(PeerCall::Unified, true) { Err(0) } else { Ok(()) }
        }, nothing;
    cuMemcpyPeerAsync(
        to: DevicePtr, to_context: Handle, from: DevicePtr, from_context: Handle, bytes: usize, stream: Handle
    )
        |state, call| {
            let has_access = state.registry.belongs(call, (to, to_context), bytes, from_context)?;
            state.registry.belongs(call, (from, from_context), bytes, to_context)?;
            state.registry.used(call, Kind::Stream, stream)?;
            if state.copies_nothing(PeerCall::BetweenContexts, has_access) { Err(0) } else { Ok(()) }
        }, nothing;
    cuMemsetD8Async(at: DevicePtr, value: u8, bytes: usize, stream: Handle)
        |state, call| state.registry.accesses(call, stream, at, bytes).map(drop), nothing;

    cuModuleLoadData(place: *mut Handle, image: *const c_void)
        |state, call| Ok(()), move |state: &mut State, context| state.registry.created(Kind::Module, out(place), context);
    cuModuleUnload(module: Handle) |state, call| state.registry.destroyed(call, Kind::Module, module), nothing;
    cuModuleGetFunction(place: *mut Handle, module: Handle, name: *const c_char)
        |state, call| state.registry.used(call, Kind::Module, module).map(drop),
        move |state: &mut State, _| {
            let owner = state.registry.owner(Kind::Module, module).unwrap_or_default();
            state.registry.created(Kind::Function, out(place), owner);
        };
    cuFuncSetAttribute(function: Handle, attribute: i32, value: i32)
        |state, call| state.registry.used(call, Kind::Function, function).map(drop), nothing;
    cuLaunchKernel(
        function: Handle, x: c_uint, y: c_uint, z: c_uint, tx: c_uint, ty: c_uint, tz: c_uint, shared: c_uint,
        stream: Handle, args: *mut *mut c_void, extra: *mut *mut c_void
    )
        |state, call| state.registry.together(call, (Kind::Function, function), (Kind::Stream, stream)), nothing;

    cuStreamBeginCapture_v2(stream: Handle, mode: i32)
        |state, call| state.registry.used(call, Kind::Stream, stream).map(drop), nothing;
    cuStreamEndCapture(stream: Handle, place: *mut Handle)
        |state, call| state.registry.used(call, Kind::Stream, stream).map(drop), nothing;
    cuGraphInstantiateWithFlags(place: *mut Handle, graph: Handle, flags: u64)
        |state, call| Ok(()), move |state: &mut State, context| state.registry.created(Kind::GraphExec, out(place), context);
    cuGraphUpload(ready: Handle, stream: Handle)
        |state, call| state.registry.together(call, (Kind::GraphExec, ready), (Kind::Stream, stream)), nothing;
    cuGraphLaunch(ready: Handle, stream: Handle)
        |state, call| state.registry.together(call, (Kind::GraphExec, ready), (Kind::Stream, stream)), nothing;
    cuGraphExecDestroy(ready: Handle)
        |state, call| state.registry.destroyed(call, Kind::GraphExec, ready), nothing;
}
