//! Files that others may have put there: read only if they are regular and small enough, locked only if they are ours.
//!
//! A path from a flag or a shared folder can name anything: a FIFO that blocks until somebody writes, `/dev/zero`, which
//! has no end, a link to a file of somebody else. [`open_regular`] returns at once for all of them. [`read_bounded`] knows
//! the size before it allocates. [`open_lock`] follows no link and truncates nothing. [`is_private_folder`] tells a folder
//! of this user from one that somebody else made to look like it.

mod private;
mod regular;

pub use private::{create_private_folder, is_private_folder, is_protected, open_lock, open_private};
pub use regular::{TooLarge, open_bounded, open_regular, read_bounded, read_text};
