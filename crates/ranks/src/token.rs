//! The secret that the ranks of a run share.

use std::fmt;
use std::hint::black_box;

use crate::EnvironmentError;

/// The longest token, in bytes. A comparison takes as long as for a token of this length.
pub(crate) const MAX_TOKEN_BYTES: usize = 1024;

/// The secret that proves that a process belongs to the run. Neither `Debug` nor any message shows it.
#[derive(Clone)]
pub struct Token {
    secret: String,
}

impl Token {
    /// The token with this content. Fails if it is empty or longer than 1024 bytes.
    pub fn new(secret: impl Into<String>) -> Result<Token, EnvironmentError> {
        let secret = secret.into();
        match secret.len() {
            0 => Err(EnvironmentError::EmptyToken),
            bytes if bytes > MAX_TOKEN_BYTES => Err(EnvironmentError::TokenTooLong { bytes, limit: MAX_TOKEN_BYTES }),
            _ => Ok(Token { secret }),
        }
    }

    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }

    /// The bytes that go over the wire: none when there is no token.
    pub(crate) fn bytes(token: Option<&Token>) -> &[u8] {
        token.map_or(&[], |token| token.secret.as_bytes())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

/// Whether two tokens are equal, in a time that depends on neither their content nor their lengths. Otherwise the time of
/// an answer would tell how much of a guess is right.
pub(crate) fn same_token(a: &[u8], b: &[u8]) -> bool {
    let byte = |token: &[u8], index: usize| token.get(index).copied().unwrap_or(0);
    let mut difference = a.len() ^ b.len();
    for index in 0..MAX_TOKEN_BYTES {
        difference |= usize::from(black_box(byte(a, index) ^ byte(b, index)));
    }
    black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_equal_when_every_byte_and_the_length_are() {
        let check = |a: &str, b: &str, same| assert_eq!(same_token(a.as_bytes(), b.as_bytes()), same, "{a:?} {b:?}");
        check("", "", true);
        check("secret", "secret", true);
        check("secret", "secreT", false);
        check("secret", "secret\0", false);
        check("secret", "", false);
        check(&"x".repeat(MAX_TOKEN_BYTES), &"x".repeat(MAX_TOKEN_BYTES), true);
    }

    #[test]
    fn a_token_is_neither_empty_nor_endless() {
        assert_eq!(Token::new("").unwrap_err(), EnvironmentError::EmptyToken);
        assert!(Token::new("x".repeat(MAX_TOKEN_BYTES)).is_ok());
        assert!(Token::new("x".repeat(MAX_TOKEN_BYTES + 1)).is_err());
    }

    #[test]
    fn debug_output_hides_the_token() {
        assert_eq!(format!("{:?}", Token::new("secret").unwrap()), "Token(hidden)");
    }
}
