//! The meaning of the driver's error codes.

use std::ffi::{CStr, c_char};
use std::ptr;

use super::api::{Code, DEVICE_UNAVAILABLE, DriverApi};

/// Whether the context is unusable after this error, so that every later call fails.
pub(crate) fn is_loss(code: Code) -> bool {
    // In order: uncorrectable memory errors, an invalid graphics context, uncorrectable link errors and their contained
    // forms; faults of a kernel (illegal address, time-out, destroyed context, assertion, stack, instruction, alignment,
    // address space, program counter, launch) and leaked tensor memory; unknown errors, which a card that fell off the bus
    // reports.
    matches!(code, DEVICE_UNAVAILABLE | 214 | 219 | 220 | 226 | 227 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 999)
}

/// The driver's name, number and message for `code`.
pub(crate) fn describe(api: &DriverApi, code: Code) -> String {
    let name = text(api.cuGetErrorName, code);
    match (name, text(api.cuGetErrorString, code)) {
        (Some(name), Some(sentence)) => format!("{name} ({code}: {sentence})"),
        (Some(name), None) => format!("{name} ({code})"),
        (None, _) => format!("error {code}"),
    }
}

/// What to do about the errors that `cuInit` is known to return.
pub(crate) fn init_hint(code: Code) -> &'static str {
    match code {
        34 => "this is a link-time stub, not a driver",
        304 => "the operating system refused: can this user access the device nodes (/dev/nvidia*)?",
        802 => "the system is not ready: on NVSwitch machines the fabric manager must run",
        803 => "the library and the kernel driver have different versions: reboot, or reinstall the driver",
        804 => "a CUDA compatibility library is found before the driver's own, and this card does not support it",
        999 => "often the module nvidia-uvm is not loaded, or the machine was suspended: try nvidia-smi, or reboot",
        _ => "try nvidia-smi",
    }
}

fn text(ask: unsafe extern "C" fn(Code, *mut *const c_char) -> Code, code: Code) -> Option<String> {
    let mut text: *const c_char = ptr::null();
    // SAFETY: one pointer is written.
    let known = unsafe { ask(code, &raw mut text) } == 0;
    // SAFETY: the driver's texts are static and end in NUL; null is excluded first.
    (known && !text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}
