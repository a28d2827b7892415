//! What the shim knows of every handle and of every byte of device memory, and the rules it checks with that.
//!
//! The rules are those of two cards. Two contexts on one card break some of them without an error, and the fake driver all.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write as _;

use super::super::api::{Code, DevicePtr, Handle};

/// `CUDA_ERROR_INVALID_VALUE`
const INVALID_VALUE: Code = 1;
/// `CUDA_ERROR_INVALID_HANDLE`
pub(super) const INVALID_HANDLE: Code = 400;

/// The kinds of handles that belong to a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Stream,
    Event,
    Module,
    Function,
    GraphExec,
    Pool,
}

/// The owners of all handles and of all memory.
#[derive(Default)]
pub(super) struct Registry {
    contexts: HashMap<Handle, Context>,
    handles: HashMap<(Kind, Handle), Handle>,
    memory: BTreeMap<DevicePtr, Allocation>,
    /// The devices to which a pool was opened.
    access: HashMap<Handle, BTreeSet<i32>>,
    pub(super) violations: Vec<String>,
}

struct Context {
    device: i32,
    is_primary: bool,
    /// A primary context is retained more than once.
    users: usize,
}

#[derive(Clone, Copy)]
struct Allocation {
    bytes: u64,
    context: Handle,
    /// 0 if it is in none.
    pool: Handle,
}

impl Registry {
    pub(super) fn opened(&mut self, context: Handle, device: i32, is_primary: bool) {
        self.contexts.entry(context).or_insert(Context { device, is_primary, users: 0 }).users += 1;
    }

    /// A context ends. Everything that belongs to it must have been given back, unless its card is lost: nothing can be
    /// given back to that.
    pub(super) fn closed(&mut self, context: Handle, is_lost: bool) {
        let Some(open) = self.contexts.get_mut(&context) else { return };
        open.users -= 1;
        if open.users > 0 {
            return;
        }
        let left = self.handles.iter().filter(|(_, owner)| **owner == context).map(|(key, _)| format!("{key:?}"));
        let memory = self.memory.iter().filter(|(_, held)| held.context == context);
        let memory = memory.map(|(at, held)| format!("{} bytes at {at:#x}", held.bytes));
        // Functions go with their modules.
        let mut left: Vec<String> = left.filter(|key| !key.contains("Function")).chain(memory).collect();
        left.sort();
        if !left.is_empty() && !is_lost {
            self.report(format!("the context was closed with {}", left.join(", ")));
        }
        self.handles.retain(|_, owner| *owner != context);
        self.memory.retain(|_, held| held.context != context);
        self.contexts.remove(&context);
    }

    /// The primary context of a device.
    pub(super) fn primary(&self, device: i32) -> Option<Handle> {
        let is_it = |context: &Context| context.is_primary && context.device == device;
        self.contexts.iter().find(|(_, context)| is_it(context)).map(|(handle, _)| *handle)
    }

    pub(super) fn created(&mut self, kind: Kind, handle: Handle, context: Handle) {
        self.handles.insert((kind, handle), context);
    }

    pub(super) fn owner(&self, kind: Kind, handle: Handle) -> Option<Handle> {
        self.handles.get(&(kind, handle)).copied()
    }

    /// The owner of a handle that is used; a violation if it has none.
    pub(super) fn used(&mut self, call: &str, kind: Kind, handle: Handle) -> Result<Handle, Code> {
        self.owner(kind, handle)
            .ok_or_else(|| self.violation(call, INVALID_HANDLE, format!("{kind:?} {handle:#x} does not exist")))
    }

    /// Both handles must be of one context.
    pub(super) fn together(&mut self, call: &str, one: (Kind, Handle), other: (Kind, Handle)) -> Result<(), Code> {
        let (first, second) = (self.used(call, one.0, one.1)?, self.used(call, other.0, other.1)?);
        match first == second {
            true => Ok(()),
            false => {
                Err(self.violation(call, INVALID_HANDLE, format!("{:?} and {:?} of two contexts", one.0, other.0)))
            }
        }
    }

    pub(super) fn destroyed(&mut self, call: &str, kind: Kind, handle: Handle) -> Result<(), Code> {
        self.used(call, kind, handle)?;
        if kind == Kind::Pool && self.access.get(&handle).is_some_and(|readers| !readers.is_empty()) {
            // A new pool with the same handle would inherit it. Between contexts of one card it stays: it is the card's own.
            let own = self.owner(kind, handle).and_then(|context| self.device_of(context));
            let left =
                self.access.get(&handle).is_some_and(|readers| readers.iter().any(|reader| Some(*reader) != own));
            if left {
                self.report(format!("{call}: a pool was destroyed while other cards had access"));
            }
        }
        self.handles.remove(&(kind, handle));
        self.access.remove(&handle);
        Ok(())
    }

    pub(super) fn allocated(&mut self, at: DevicePtr, bytes: usize, context: Handle, pool: Handle) {
        self.memory.insert(at, Allocation { bytes: bytes as u64, context, pool });
    }

    pub(super) fn freed(&mut self, call: &str, at: DevicePtr) -> Result<(), Code> {
        match self.memory.remove(&at) {
            Some(_) => Ok(()),
            None => Err(self.violation(call, INVALID_VALUE, format!("{at:#x} is not allocated"))),
        }
    }

    pub(super) fn set_access(&mut self, pool: Handle, device: i32, is_granted: bool) {
        let readers = self.access.entry(pool).or_default();
        if is_granted {
            readers.insert(device)
        } else {
            readers.remove(&device)
        };
    }

    /// Work of a stream accesses memory: its own context's, or that of a pool that was opened to its card. Returns whether
    /// it is of another context.
    pub(super) fn accesses(&mut self, call: &str, stream: Handle, at: DevicePtr, bytes: usize) -> Result<bool, Code> {
        let context = self.used(call, Kind::Stream, stream)?;
        let held = self.holding(call, at, bytes)?;
        let device = self.device_of(context);
        let is_open =
            || device.is_some_and(|device| self.access.get(&held.pool).is_some_and(|to| to.contains(&device)));
        if held.context != context && !is_open() {
            let problem = format!("{at:#x} is memory of another card, without access");
            return Err(self.violation(call, INVALID_VALUE, problem));
        }
        Ok(held.context != context)
    }

    /// A range that is passed together with its context. Returns whether the pool is open to the card of `other`.
    pub(super) fn belongs(
        &mut self,
        call: &str,
        (at, context): (DevicePtr, Handle),
        bytes: usize,
        other: Handle,
    ) -> Result<bool, Code> {
        let held = self.holding(call, at, bytes)?;
        if held.context != context {
            return Err(self.violation(call, INVALID_VALUE, format!("{at:#x} is not memory of that context")));
        }
        let device = self.device_of(other);
        let is_open = |to: &BTreeSet<i32>| device.is_some_and(|device| to.contains(&device));
        Ok(self.access.get(&held.pool).is_some_and(is_open))
    }

    fn holding(&mut self, call: &str, at: DevicePtr, bytes: usize) -> Result<Allocation, Code> {
        let held = self.memory.range(..=at).next_back().map(|(base, held)| (*base, *held));
        match held.filter(|(base, held)| at + bytes as u64 <= base + held.bytes) {
            Some((_, held)) => Ok(held),
            None => Err(self.violation(call, INVALID_VALUE, format!("{at:#x}+{bytes} is not allocated"))),
        }
    }

    pub(super) fn violation(&mut self, call: &str, code: Code, problem: String) -> Code {
        self.report(format!("{call}: {problem}"));
        code
    }

    /// Keeps a violation, and shows it where no test reads it.
    fn report(&mut self, violation: String) {
        if !cfg!(test) {
            // Nothing can be done about a closed standard error.
            let _ = writeln!(std::io::stderr(), "TANDEM_CUDA_SHIM: {violation}");
        }
        self.violations.push(violation);
    }

    fn device_of(&self, context: Handle) -> Option<i32> {
        self.contexts.get(&context).map(|context| context.device)
    }

    /// The contexts that are still open.
    #[cfg(test)]
    pub(super) fn open_contexts(&self) -> Vec<Handle> {
        self.contexts.keys().copied().collect()
    }
}
