//! The keyboard: whether a key quits, and whether the terminal still exists.
//!
//! Read here and not by the drawing library: after a hangup, crossterm 0.29 reads the end of its input in an endless loop
//! (seen as a process at full load).

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Escape alone is a key; followed by more bytes within this time, it starts an escape sequence.
const SEQUENCE_TIMEOUT: Duration = Duration::from_millis(50);
const ESCAPE: u8 = 0x1b;
const CTRL_C: u8 = 0x03;

/// The result of waiting for keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyPoll {
    /// No key that quits.
    Nothing,
    /// `q`, Escape or Ctrl-C.
    Quit,
    /// The terminal is gone.
    Gone,
}

/// Waits for keys, at most for `timeout`. A signal ends the wait early.
pub(super) fn wait(keyboard: impl AsFd, timeout: Duration) -> io::Result<KeyPoll> {
    let Some(mut typed) = read_within(&keyboard, timeout)? else { return Ok(KeyPoll::Nothing) };
    if typed.is_empty() {
        return Ok(KeyPoll::Gone);
    }
    if typed.last() == Some(&ESCAPE) {
        typed.extend(read_within(&keyboard, SEQUENCE_TIMEOUT)?.unwrap_or_default());
    }
    Ok(if quits(&typed) { KeyPoll::Quit } else { KeyPoll::Nothing })
}

/// The bytes typed. None if nothing came in time; empty at the end of input.
fn read_within(keyboard: &impl AsFd, timeout: Duration) -> io::Result<Option<Vec<u8>>> {
    let mut watched = [PollFd::new(keyboard, PollFlags::IN)];
    let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
    match poll(&mut watched, Some(&timeout)) {
        Ok(0) | Err(Errno::INTR) => return Ok(None),
        Ok(_) => {}
        Err(error) => return Err(error.into()),
    }
    let mut typed = [0; 256];
    match rustix::io::read(keyboard, &mut typed) {
        Ok(count) => Ok(Some(typed[..count].to_vec())),
        Err(Errno::INTR | Errno::AGAIN) => Ok(None),
        // The terminal hung up.
        Err(Errno::IO) => Ok(Some(Vec::new())),
        Err(error) => Err(error.into()),
    }
}

/// Whether one of the keys quits. Arrows, function keys and Alt with a letter start with an escape too and do not quit.
fn quits(typed: &[u8]) -> bool {
    let mut rest = typed;
    while let Some((first, after)) = rest.split_first() {
        rest = match (*first, after) {
            (b'q' | b'Q' | CTRL_C, _) | (ESCAPE, []) => return true,
            (ESCAPE, [b'[' | b'O', sequence @ ..]) => {
                let end = sequence.iter().position(|byte| (0x40..=0x7e).contains(byte));
                end.map_or(&[][..], |end| &sequence[end + 1..])
            }
            (ESCAPE, [_, after @ ..]) => after,
            _ => after,
        };
    }
    false
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn q_escape_and_ctrl_c_quit_and_nothing_else() {
        for typed in [&b"q"[..], b"Q", b"\x1b", b"\x03", b"xq", b"\x1b[Aq", b"\x1bOP\x03", b"\x1b[A\x1b"] {
            assert!(quits(typed), "{typed:?}");
        }
        for typed in
            [&b""[..], b"x", b"c", b"\r", b"\x1b[A", b"\x1bOQ", b"\x1b[1;5Q", b"\x1bq", b"\x1b[", "é".as_bytes()]
        {
            assert!(!quits(typed), "{typed:?}");
        }
    }

    #[test]
    fn keys_and_a_hangup_are_noticed() {
        let (keyboard, mut typist) = io::pipe().unwrap();
        assert_eq!(wait(&keyboard, Duration::ZERO).unwrap(), KeyPoll::Nothing);
        for (typed, expected) in [
            (&b"x"[..], KeyPoll::Nothing),
            (b"q", KeyPoll::Quit),
            (b"\x1b", KeyPoll::Quit),
            (b"\x1b[B", KeyPoll::Nothing),
        ] {
            typist.write_all(typed).unwrap();
            assert_eq!(wait(&keyboard, Duration::ZERO).unwrap(), expected, "{typed:?}");
        }
        drop(typist);
        assert_eq!(wait(&keyboard, Duration::ZERO).unwrap(), KeyPoll::Gone);
    }
}
