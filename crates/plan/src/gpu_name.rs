//! How a user names a GPU: by its number, or by its UUID.

use std::fmt;

/// The name of a GPU on the command line and in a config file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuName {
    /// Its number in `nvidia-smi`.
    Index(usize),
    /// Its UUID as `nvidia-smi` prints it, or the start of it: `GPU-8f2d`.
    Uuid(String),
}

/// More than any machine has.
pub(crate) const MAX_INDEX: usize = 1023;
/// A UUID has 40 characters, that of a partition of a card a few more.
const MAX_UUID: usize = 64;

impl GpuName {
    /// Parses a number or the start of a UUID; `None` for anything else.
    pub fn parse(text: &str) -> Option<GpuName> {
        if let Ok(index) = text.parse::<usize>() {
            return (index <= MAX_INDEX).then_some(GpuName::Index(index));
        }
        let (kind, digits) = text.split_once('-')?;
        let is_kind = kind.len() == 3 && kind.chars().all(|c| c.is_ascii_alphabetic());
        let is_start = !digits.is_empty() && digits.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        (is_kind && is_start && text.len() <= MAX_UUID).then(|| GpuName::Uuid(text.to_owned()))
    }

    /// Whether a card with this number and this UUID has the name. The case of letters does not matter.
    pub fn is_name_of(&self, index: usize, uuid: &str) -> bool {
        match self {
            GpuName::Index(given) => *given == index,
            GpuName::Uuid(start) => uuid.get(..start.len()).is_some_and(|part| part.eq_ignore_ascii_case(start)),
        }
    }

    /// The name in a sentence: `GPU 1`, `GPU-8f2d`.
    pub(crate) fn in_words(&self) -> String {
        match self {
            GpuName::Index(index) => format!("GPU {index}"),
            GpuName::Uuid(start) => start.clone(),
        }
    }
}

impl fmt::Display for GpuName {
    /// As a flag or a config file takes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuName::Index(index) => write!(f, "{index}"),
            GpuName::Uuid(start) => f.write_str(start),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "GPU-8f2d4c9e-0000-1111-2222-333344445555";

    #[test]
    fn numbers_and_starts_of_uuids_are_names_and_nothing_else_is() {
        let uuid = |text: &str| Some(GpuName::Uuid(text.to_owned()));
        let check = |text: &str, expected: Option<GpuName>| assert_eq!(GpuName::parse(text), expected, "{text}");
        check("0", Some(GpuName::Index(0)));
        check("1023", Some(GpuName::Index(1023)));
        check(UUID, uuid(UUID));
        check("gpu-8F", uuid("gpu-8F"));
        check("MIG-1", uuid("MIG-1"));
        let long = format!("GPU-{}", "0".repeat(64));
        for wrong in ["", "-1", "1024", "1.5", "abc", "GPU", "GPU-", "8f2d4c9e", "GPU-8f 2d", "GPU-\u{06f1}", &long] {
            check(wrong, None);
        }
    }

    #[test]
    fn a_uuid_is_named_by_its_start_in_any_case() {
        let is_name = |text: &str| GpuName::parse(text).unwrap().is_name_of(3, UUID);
        assert!(is_name("3") && is_name(UUID) && is_name("GPU-8f2d") && is_name("gpu-8F2D4C9E"));
        assert!(!is_name("1") && !is_name("GPU-8f2e") && !is_name(&format!("{UUID}0")) && !is_name("MIG-8f2d"));
    }
}
