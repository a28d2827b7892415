//! Files compared with the `safetensors` crate, and writers that fail at every byte.

use proptest::prelude::*;
use safetensors::SafeTensors;

use super::*;

const TENSORS: [TensorRef<'static>; 5] = [
    TensorRef { name: "b", dtype: Dtype::F32, shape: &[2], bytes: &[1; 8] },
    TensorRef { name: "a \"quoted\" ü", dtype: Dtype::Bf16, shape: &[3, 1], bytes: &[2; 6] },
    TensorRef { name: "step", dtype: Dtype::U64, shape: &[], bytes: &[3; 8] },
    TensorRef { name: "empty", dtype: Dtype::F64, shape: &[4, 0], bytes: &[] },
    TensorRef { name: "ids", dtype: Dtype::I32, shape: &[1, 2, 1], bytes: &[4; 8] },
];

fn encode(tensors: &[TensorRef<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_into(&mut bytes, tensors).unwrap();
    bytes
}

/// Opens bytes with their own digest.
fn open(bytes: &[u8]) -> Result<TensorFile, CheckpointError> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    TensorFile::open_verified(file.path(), &FileDigest::of(bytes))
}

#[test]
fn the_safetensors_crate_reads_the_same() {
    let bytes = encode(&TENSORS);
    let theirs = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(theirs.len(), TENSORS.len());
    for tensor in &TENSORS {
        let view = theirs.tensor(tensor.name).unwrap();
        assert_eq!(
            (view.dtype(), view.shape(), view.data()),
            (tensor.dtype.to_safetensors(), tensor.shape, tensor.bytes)
        );
        let at = view.data().as_ptr() as usize - bytes.as_ptr() as usize;
        assert_eq!(at % tensor.dtype.num_bytes(), 0, "{} is at {at}", tensor.name);
    }
    let specs = TENSORS.map(|tensor| tensor.spec());
    assert_eq!(tensor_file_bytes(&specs), bytes.len() as u64);
    let mut reversed = TENSORS;
    reversed.reverse();
    assert_eq!(encode(&reversed), bytes, "the order they are given in does not matter");
}

#[test]
fn tensors_read_back_as_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t");
    let digest = write(&path, &TENSORS).unwrap();
    assert_eq!(digest, FileDigest::of(&std::fs::read(&path).unwrap()));
    let file = TensorFile::open_verified(&path, &digest).unwrap();
    std::fs::remove_file(&path).unwrap();
    let specs = TENSORS.map(|tensor| tensor.spec());
    file.expect(&specs).unwrap();
    for tensor in &TENSORS {
        assert_eq!(file.spec(tensor.name), Some(tensor.spec()));
        assert_eq!(file.read(tensor.name).unwrap(), tensor.bytes);
    }
    assert!(matches!(file.read("none"), Err(CheckpointError::NoSuchTensor { name, .. }) if name == "none"));
    assert_eq!(file.names().count(), TENSORS.len());
}

#[test]
fn every_difference_is_listed() {
    let file = open(&encode(&TENSORS)).unwrap();
    let mut wanted = TENSORS.map(|tensor| tensor.spec()).to_vec();
    wanted.remove(2);
    wanted[0].shape = &[1, 2];
    wanted[1].dtype = Dtype::F32;
    wanted[3] = TensorSpec { name: "ids", dtype: Dtype::U64, shape: &[2] };
    wanted.push(TensorSpec { name: "new", dtype: Dtype::F64, shape: &[7] });
    let Err(CheckpointError::WrongTensors { mismatches, .. }) = file.expect(&wanted) else { panic!("no mismatch") };
    let shown: Vec<_> = mismatches.iter().map(Mismatch::to_string).collect();
    let expected = [
        "`b`: expected [1, 2], found [2]",
        "`a \"quoted\" ü`: expected F32, found BF16",
        "`ids`: expected U64, found I32",
        "`ids`: expected [2], found [1, 2, 1]",
        "`new` F64 [7] is missing",
        "`step` U64 [] was not expected",
    ];
    assert_eq!(shown, expected);
}

#[test]
fn unused_element_types_are_reported_by_name() {
    let header = br#"{"x":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}  "#;
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 4]].concat();
    let file = open(&bytes).unwrap();
    assert_eq!(file.spec("x"), None);
    let error = file.expect(&[TensorSpec { name: "x", dtype: Dtype::Bf16, shape: &[2] }]).unwrap_err();
    assert!(error.to_string().contains("`x`: expected BF16, found F16"), "{error}");
}

#[test]
fn other_tensors_may_be_allowed() {
    let file = open(&encode(&TENSORS)).unwrap();
    let some = [TENSORS[0].spec(), TENSORS[4].spec()];
    file.expect_at_least(&some).unwrap();
    assert!(file.expect(&some).is_err());
    let missing = TensorSpec { name: "new", dtype: Dtype::F32, shape: &[1] };
    let error = file.expect_at_least(&[some[0], missing]).unwrap_err().to_string();
    assert!(error.contains("this model: `new` F32 [1] is missing: "), "{error}");
}

#[test]
fn invalid_headers_are_refused_even_with_the_right_checksum() {
    let good = encode(&TENSORS);
    let check = |bytes: &[u8], part: &str| {
        let error = open(bytes).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    check(&[], "found 0 bytes");
    check(&good[..7], "found 7 bytes");
    check(&good[..20], "a header of");
    check(&[&u64::MAX.to_le_bytes()[..], &good[8..]].concat(), "a header of 18446744073709551615 bytes");
    check(&good[..good.len() - 1], "the header describes");
    check(&[&good[..], &[0]].concat(), "the header describes");
    let broken = |from: &str, to: &str| {
        let at = good.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
        [&good[..at], to.as_bytes(), &good[at + to.len()..]].concat()
    };
    check(&broken("{", "["), "the tensor header is damaged");
    check(&broken("\"shape\":[2]", "\"shape\":[3]"), "the tensor header is damaged");
    check(&broken("F32", "F99"), "the tensor header is damaged");
}

#[test]
fn length_and_checksum_are_compared_first() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t");
    let digest = write(&path, &TENSORS).unwrap();
    let good = std::fs::read(&path).unwrap();
    let check = |part: &str| {
        let error = TensorFile::open_verified(&path, &digest).unwrap_err().to_string();
        assert!(error.contains(part) && error.ends_with(&path.display().to_string()), "{error}");
    };
    for position in [0, 8, good.len() / 2, good.len() - 1] {
        let mut flipped = good.clone();
        flipped[position] ^= 1;
        std::fs::write(&path, flipped).unwrap();
        check("expected checksum");
    }
    std::fs::write(&path, &good[..good.len() - 1]).unwrap();
    check(&format!("expected {} bytes, found {}", good.len(), good.len() - 1));
    std::fs::remove_file(&path).unwrap();
    check("the file is missing");
}

/// Takes `room_bytes` bytes, then fails as a full disk does.
struct Full {
    room_bytes: usize,
}

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.room_bytes == 0 && !bytes.is_empty() {
            return Err(io::Error::from_raw_os_error(28));
        }
        let taken = bytes.len().min(self.room_bytes);
        self.room_bytes -= taken;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_disk_full_at_any_byte_is_an_error() {
    let needed = encode(&TENSORS).len();
    for room_bytes in 0..needed {
        let error = write_into(&mut HashingWriter::new(Full { room_bytes }), &TENSORS).unwrap_err();
        assert!(crate::disk::is_no_room(&error), "{room_bytes}: {error}");
    }
    write_into(&mut HashingWriter::new(Full { room_bytes: needed }), &TENSORS).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    /// Opening never panics, and every tensor of an accepted file can be read.
    #[test]
    fn no_bytes_make_it_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        length in 0_u64..64,
        json in any::<bool>(),
    ) {
        let mut bytes = bytes;
        if json {
            let text = br#"{"x":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#;
            bytes = [&(text.len() as u64 + length % 3).to_le_bytes()[..], text, &bytes].concat();
        } else if bytes.len() >= 8 {
            bytes[..8].copy_from_slice(&length.to_le_bytes());
        }
        if let Ok(file) = open(&bytes) {
            let names: Vec<_> = file.names().map(str::to_owned).collect();
            for name in names {
                file.read(&name).unwrap();
            }
        }
    }
}
