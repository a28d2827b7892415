//! Features.

pub(crate) mod on_device;
pub(crate) mod on_host;
