//! Which names a member may have.

/// The longest name, in bytes: what Linux takes for a path.
const MAX_NAME_BYTES: usize = 4096;

/// Whether `name` can be used: it names a file, below the folder it would be unpacked into. What is wrong, otherwise.
pub(crate) fn check_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() {
        return Err("is an empty name");
    }
    if name.len() > MAX_NAME_BYTES {
        return Err("is a name of more than 4096 bytes");
    }
    if name.starts_with('/') {
        return Err("is an absolute name: expected a relative one");
    }
    if name.contains('\0') {
        return Err("is a name with a NUL byte");
    }
    if name.split('/').any(|part| part == "..") {
        return Err("is a name with `..`: expected one that stays below its folder");
    }
    if matches!(name.rsplit('/').next(), Some("" | ".")) {
        return Err("is the name of a folder: expected one of a file");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_below_their_folder() {
        for name in ["a", "a/b.wav", "./a.wav", "a..b/..c", "a//b", "é.txt", "..."] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in ["", "/", "/a", "..", "../a", "a/../b", "a/..", "a/", ".", "a/.", "a\0b", &"a".repeat(4097)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
