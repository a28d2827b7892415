//! Bytes of files and of objects in object stores.
//!
//! A text becomes an [`ObjectLocation`], or many of them with [`Storage::expand`]. [`Storage::open`] gives an [`Object`] that
//! can be read at any position, and [`Storage::fetch`] reads ahead in the background. [`StorageInterrupt`] ends waits. What is on this machine, in S3, in
//! Google Cloud Storage, in Azure or behind http is read alike; every answer is checked against the [`ObjectStamp`] that was
//! seen first, and asked for again if it is not what was asked for.

mod error;
mod redact;
mod location;
mod stamp;
mod braces;
mod glob;
mod transport;
mod retry;
mod clients;
mod interrupt;
mod remote;
mod storage;
mod expand;
mod read_at;
mod object;
mod reader;
mod fetch;

pub use error::StorageError;
pub use fetch::ObjectFetch;
pub use interrupt::StorageInterrupt;
pub use location::ObjectLocation;
pub use object::Object;
pub use read_at::ReadAt;
pub use reader::ObjectReader;
pub use redact::redact;
pub use retry::StorageSettings;
pub use stamp::ObjectStamp;
pub use storage::Storage;
