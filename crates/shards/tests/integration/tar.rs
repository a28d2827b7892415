//! Tar archives: those that Python's tarfile, webdataset and GNU tar wrote, ours, and damaged ones.

use std::fs::File;
use std::io::{Cursor, Seek, SeekFrom, Write};

use proptest::prelude::*;
use tandem_shards::{ShardFault, TarMember, TarReader, TarWriter};

use crate::damage::{cases, changes, damaged};

const USTAR: &[u8] = include_bytes!("../data/python_ustar.tar");
const GNU: &[u8] = include_bytes!("../data/python_gnu.tar");
const PAX: &[u8] = include_bytes!("../data/python_pax.tar");
const WEBDATASET: &[u8] = include_bytes!("../data/webdataset.tar");
const SPARSE_GNU: &[u8] = include_bytes!("../data/sparse_gnu.tar");
const SPARSE_POSIX: &[u8] = include_bytes!("../data/sparse_posix.tar");

/// Members and faults of an archive.
fn read(bytes: &[u8]) -> (Vec<TarMember>, Vec<ShardFault>) {
    let (mut members, mut faults) = (Vec::new(), Vec::new());
    for item in TarReader::new(Cursor::new(bytes), bytes.len() as u64) {
        match item {
            Ok(member) => members.push(member),
            Err(fault) => faults.push(fault),
        }
    }
    (members, faults)
}

fn data<'a>(bytes: &'a [u8], member: &TarMember) -> &'a [u8] {
    &bytes[member.offset as usize..][..member.num_bytes as usize]
}

fn names_of(members: &[TarMember]) -> Vec<&str> {
    members.iter().map(|member| member.name.as_str()).collect()
}

/// What `make_tar_arrow.py` writes into a member.
fn content(name: &str) -> Vec<u8> {
    let size = name.len() * 3;
    (0..size).map(|i| ((size * 31 + i * 7) % 251) as u8).collect()
}

/// A block with a right checksum.
fn header(name: &[u8], flag: u8, size: &[u8; 12]) -> [u8; 512] {
    let mut block = [0; 512];
    block[..name.len()].copy_from_slice(name);
    block[124..136].copy_from_slice(size);
    block[156] = flag;
    block[257..265].copy_from_slice(b"ustar\x0000");
    seal(&mut block);
    block
}

fn seal(block: &mut [u8; 512]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

fn octal(size: u64) -> [u8; 12] {
    let mut field = [0; 12];
    field[..11].copy_from_slice(format!("{size:011o}").as_bytes());
    field
}

fn binary(size: u64) -> [u8; 12] {
    let mut field = [0; 12];
    field[0] = 0x80;
    field[4..].copy_from_slice(&size.to_be_bytes());
    field
}

/// An archive of `blocks` and the end marker.
fn archive(blocks: &[&[u8; 512]]) -> Vec<u8> {
    let end = [&[0; 512], &[0; 512]];
    blocks.iter().chain(&end).flat_map(|block| block.iter().copied()).collect()
}

fn reason(fault: &ShardFault) -> String {
    fault.to_string()
}

#[test]
fn archives_of_python_in_all_its_formats() {
    let long = format!("folder/{}é.wav", "long-".repeat(30));
    let split = format!("{}/{}.wav", "p".repeat(90), "n".repeat(60));
    for (bytes, third) in [(USTAR, &split), (GNU, &long), (PAX, &long)] {
        let (members, faults) = read(bytes);
        assert_eq!(names_of(&members), ["a.wav", "a.txt", third, "last.wav"]);
        for member in &members {
            assert_eq!(data(bytes, member), content(&member.name), "{}", member.name);
            assert_eq!(member.offset, member.header_offset + 512);
        }
        let refused = ["symbolic", "hard", "pipe", "device", "../outside.wav", "/absolute.wav"];
        assert_eq!(faults.len(), refused.len(), "{faults:?}");
        for (fault, name) in faults.iter().zip(refused) {
            assert!(matches!(fault, ShardFault::Unsupported { .. }), "{fault}");
            assert!(reason(fault).starts_with(&format!("`{name}` is a")), "{fault}");
            assert!(reason(fault).contains("(header at byte "), "{fault}");
        }
    }
    let (_, faults) = read(USTAR);
    assert_eq!(reason(&faults[0]), "`symbolic` is a symbolic link: expected a regular file (header at byte 3584)");
}

#[test]
fn an_archive_of_webdataset_and_its_small_members() {
    let mut reader = TarReader::new(Cursor::new(WEBDATASET), WEBDATASET.len() as u64);
    let (mut found, mut text) = (Vec::new(), Vec::new());
    while let Some(item) = reader.next() {
        let member = item.unwrap();
        if member.name.ends_with(".json") {
            reader.read_small(&member, 100, &mut text).unwrap();
            let number = found.len() / 2;
            assert_eq!(str::from_utf8(&text).unwrap(), format!("{{\"text\": \"text {number}\"}}"));
            let fault = reader.read_small(&member, 17, &mut text).unwrap_err();
            assert!(reason(&fault).contains("expected at most 17 bytes, found 18"), "{fault}");
        }
        found.push(member.name);
    }
    assert_eq!(found, ["utt0.flac", "utt0.json", "utt1.flac", "utt1.json", "utt2.flac", "utt2.json"]);
}

#[test]
fn sparse_files_are_refused_and_the_members_after_them_are_read() {
    for bytes in [SPARSE_GNU, SPARSE_POSIX] {
        let (members, faults) = read(bytes);
        assert_eq!(names_of(&members), ["a.wav", "z.wav"]);
        assert!(members.iter().all(|member| data(bytes, member) == content(&member.name)));
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(reason(&faults[0]).contains("is a sparse file"), "{}", faults[0]);
    }
    // A map of two more blocks: GNU tar puts them before the data.
    let mut first = header(b"sparse.wav", b'S', &octal(3));
    first[257..265].copy_from_slice(b"ustar  \0");
    first[482] = 1;
    seal(&mut first);
    let (mut second, third, next) = ([7; 512], [0; 512], header(b"z.wav", b'0', &octal(0)));
    second[504] = 1;
    let (members, faults) = read(&archive(&[&first, &second, &third, &[1; 512], &next]));
    assert_eq!((names_of(&members), faults.len()), (vec!["z.wav"], 1));
    let (members, faults) = read(&[first, second].concat());
    assert_eq!((members.len(), faults.len()), (0, 1));
    assert!(reason(&faults[0]).contains("the rest of a sparse map"), "{}", faults[0]);
}

#[test]
fn links_and_folders_have_no_data_whatever_their_size_says() {
    let blocks = [(&b"link"[..], b'1'), (b"soft", b'2'), (b"folder", b'5'), (b"old/", 0)];
    let blocks = blocks.map(|(name, flag)| header(name, flag, &octal(5000)));
    let last = header(b"a.wav", b'7', &octal(0));
    let (members, faults) = read(&archive(&[&blocks[0], &blocks[1], &blocks[2], &blocks[3], &last]));
    assert_eq!((names_of(&members), faults.len()), (vec!["a.wav"], 2));
}

#[test]
fn concatenated_archives_are_one() {
    let once = [WEBDATASET, &[0; 10 * 512], GNU].concat();
    let (members, faults) = read(&once);
    assert_eq!((members.len(), faults.len()), (6 + 4, 6));
    assert!(members.iter().all(|member| member.name.ends_with("json") || data(&once, member) == content(&member.name)));
}

#[test]
fn names_that_cannot_be_used_are_faults_of_their_members() {
    let refused = [header(b"", b'0', &octal(0)), header(b"\xff.wav", b'0', &octal(0)), header(b"a/", b'0', &octal(0))];
    let last = header(b"./a.wav", b'0', &octal(0));
    let (members, faults) = read(&archive(&[&refused[0], &refused[1], &refused[2], &last]));
    assert_eq!(names_of(&members), ["./a.wav"]);
    let faults: Vec<String> = faults.iter().map(reason).collect();
    assert_eq!(
        faults,
        [
            "`` is an empty name (header at byte 0)",
            "`\u{fffd}.wav` is no UTF-8: expected a name in UTF-8 (header at byte 512)",
            "`a/` is the name of a folder: expected one of a file (header at byte 1024)",
        ]
    );
}

#[test]
fn what_is_no_tar_archive_is_refused_with_a_reason() {
    let check = |bytes: &[u8], expected: &str| {
        let (members, faults) = read(bytes);
        assert_eq!((members.len(), faults.len()), (0, 1), "{expected}");
        assert!(reason(&faults[0]).contains(expected), "{}", faults[0]);
    };
    check(b"", "expected a tar archive, found an empty file");
    check(b"short", "found a file of 5 bytes");
    check(&[b'x'; 2000], "expected a tar archive, found no tar header");
    check(b"\x1f\x8b\x08\0\0", "compressed with gzip: decompress it");
    check(&[&b"\x1f\x8b\x08"[..], &[9; 2000]].concat(), "compressed with gzip: decompress it");
    check(&[&b"\x28\xb5\x2f\xfd"[..], &[9; 2000]].concat(), "compressed with zstd: decompress it");
    let (members, faults) = read(&[0; 10240]);
    assert!(members.is_empty() && faults.is_empty(), "an archive without members is one");
}

#[test]
fn a_wrong_checksum_ends_the_archive_with_its_place() {
    let mut bytes = WEBDATASET.to_vec();
    bytes[1024 + 3] ^= 1;
    let (members, faults) = read(&bytes);
    assert_eq!(names_of(&members), ["utt0.flac"]);
    assert!(matches!(faults[..], [ShardFault::Damaged { offset: 1024, .. }]), "{faults:?}");
}

#[test]
fn an_archive_cut_anywhere_gives_its_complete_members_and_one_fault() {
    let (all, _) = read(WEBDATASET);
    let last = all.last().map(|member| member.offset + 512).unwrap();
    for size in 1..WEBDATASET.len() {
        let (members, faults) = read(&WEBDATASET[..size]);
        let complete = all.iter().filter(|member| member.offset + member.num_bytes <= size as u64);
        assert_eq!(members, complete.cloned().collect::<Vec<_>>(), "{size}");
        let is_whole = size as u64 >= last + 512;
        assert_eq!(faults.len(), usize::from(!is_whole), "{size}: {faults:?}");
        for fault in &faults {
            assert!(matches!(fault, ShardFault::Damaged { offset, .. } if *offset <= size as u64), "{size}: {fault}");
        }
    }
}

#[test]
fn a_long_name_without_its_member_is_a_fault() {
    let name = header(b"././@LongLink", b'L', &octal(3));
    let mut text = [0; 512];
    text[..3].copy_from_slice(b"abc");
    let (members, faults) = read(&archive(&[&name, &text]));
    assert_eq!(members.len(), 0);
    assert!(reason(&faults[0]).contains("expected the member that a long-name record describes"), "{faults:?}");
}

#[test]
fn sizes_that_cannot_be_end_the_archive_without_overflow() {
    let past = [u64::MAX, u64::MAX - 511, u64::MAX - 1023, 1 << 63, 1 << 40].map(binary);
    let mut beyond_u64 = binary(0);
    beyond_u64[2] = 1;
    let negative = [0xFF; 12];
    for size in past.into_iter().chain([beyond_u64, negative, *b"not a number"]) {
        for flag in *b"0LxgKSZ" {
            let first = header(b"a.wav", b'0', &octal(0));
            let (members, faults) = read(&archive(&[&first, &header(b"b.wav", flag, &size)]));
            assert_eq!(names_of(&members), ["a.wav"]);
            assert!(matches!(faults[..], [ShardFault::Damaged { offset: 512, .. }]), "{faults:?}");
        }
    }
}

#[test]
fn a_name_or_records_over_a_mebibyte_end_the_archive() {
    let blocks = |num_bytes: usize| vec![b'n'; num_bytes.next_multiple_of(512)];
    for flag in *b"Lxg" {
        let bomb = [&header(b"bomb", flag, &octal(2 << 20))[..], &blocks(2 << 20), &[0; 1024]].concat();
        let (members, faults) = read(&bomb);
        assert_eq!((members.len(), faults.len()), (0, 1));
        assert!(reason(&faults[0]).contains("at most 1048576 bytes, found 2097152"), "{}", faults[0]);
    }
    // Many of them leave nothing behind: the last one counts.
    let names = (0..2000).flat_map(|_| [&header(b"long", b'L', &octal(9))[..], &blocks(9)].concat());
    let bytes: Vec<u8> = names.chain(header(b"short.wav", b'0', &octal(0))).chain([0; 1024]).collect();
    let (members, faults) = read(&bytes);
    assert_eq!((names_of(&members), faults.len()), (vec!["nnnnnnnnn"], 0));
}

#[test]
fn a_size_that_is_no_size_of_a_file_is_survived() {
    for size in [u64::MAX, u64::MAX - 511, u64::MAX - 1023, 1 << 63] {
        let bytes = archive(&[&header(b"a.wav", b'0', &binary(size - 600))]);
        let items: Vec<_> = TarReader::new(Cursor::new(&bytes), size).take(10).collect();
        assert!(items.len() < 10 && items.iter().all(Result::is_err), "{items:?}");
    }
}

#[test]
fn a_member_over_4_gib_is_passed_over_by_seeking() {
    let mut file = tempfile::tempfile().unwrap();
    let large = 5u64 << 30;
    file.write_all(&header(b"large.wav", b'0', &octal(large))).unwrap();
    file.seek(SeekFrom::Start(512 + large)).unwrap();
    file.write_all(&header(b"largest.wav", b'0', &octal(u64::from(u32::MAX)))).unwrap();
    let end = (512 + large + 512 + u64::from(u32::MAX)).next_multiple_of(512);
    file.set_len(end + 1024).unwrap();
    let items: Vec<_> = TarReader::new(file.try_clone().unwrap(), end + 1024).collect();
    let [Err(fault), Ok(member)] = &items[..] else { panic!("{items:?}") };
    assert_eq!(
        reason(fault),
        "`large.wav` has 5368709120 bytes: expected at most 4294967295 (4 GiB), which the address of a recording can \
         hold; split the recording into shorter ones, or leave it out (header at byte 0)"
    );
    assert_eq!((member.name.as_str(), member.num_bytes), ("largest.wav", u64::from(u32::MAX)));
}

#[test]
fn a_file_shorter_than_its_size_is_an_error_of_reading() {
    let reader = TarReader::new(Cursor::new(&WEBDATASET[..1024]), WEBDATASET.len() as u64);
    let items: Vec<_> = reader.collect();
    assert!(matches!(items[..], [Err(ShardFault::Io(_))]), "{items:?}");
}

#[test]
fn what_we_write_is_read_and_is_the_same_bytes_each_time() {
    let long = format!("{}/{}.flac", "é".repeat(200), "b".repeat(120));
    let edge = "c".repeat(101);
    let split = format!("{}/{}.flac", "d".repeat(120), "e".repeat(90));
    let names_written = ["a.flac", "folder/b c.json", &edge, &split, &long, "last"];
    let write = || {
        let mut writer = TarWriter::new(Vec::new());
        for name in names_written {
            writer.append(name, &content(name)).unwrap();
        }
        writer.finish().unwrap()
    };
    let bytes = write();
    assert_eq!(bytes, write());
    let (members, faults) = read(&bytes);
    assert!(faults.is_empty(), "{faults:?}");
    assert_eq!(names_of(&members), names_written);
    assert!(members.iter().all(|member| data(&bytes, member) == content(&member.name)));
}

#[test]
fn names_that_cannot_be_read_back_are_not_written() {
    let mut writer = TarWriter::new(Vec::new());
    for name in ["", "/a", "../a", "a/", "./a", "a//b", "a\0b", &"x".repeat(5000)] {
        assert!(matches!(writer.append(name, b"x"), Err(ShardFault::Unsupported { .. })), "{name}");
    }
    assert_eq!(writer.finish().unwrap(), [0; 1024]);
}

#[test]
fn files_on_disk_are_read_as_bytes_in_memory() {
    let mut path = tempfile::NamedTempFile::new().unwrap();
    path.write_all(PAX).unwrap();
    let items = TarReader::new(File::open(path.path()).unwrap(), PAX.len() as u64);
    let members: Vec<TarMember> = items.filter_map(Result::ok).collect();
    assert_eq!(members, read(PAX).0);
}

/// Reads anything; every address lies inside the archive, and every step takes a block.
fn check_anything(bytes: &[u8]) -> Result<(), TestCaseError> {
    let mut reader = TarReader::new(Cursor::new(bytes), bytes.len() as u64);
    let (mut count, mut out) = (0, Vec::new());
    while let Some(item) = reader.next() {
        count += 1;
        prop_assert!(count <= bytes.len() / 512 + 1);
        let Ok(member) = item else { continue };
        let end = member.offset.checked_add(member.num_bytes);
        prop_assert!(end.is_some_and(|end| end <= bytes.len() as u64), "{member:?}");
        prop_assert!(reader.read_small(&member, u64::MAX, &mut out).is_ok());
        prop_assert_eq!(&out, data(bytes, &member));
        prop_assert!(!member.name.is_empty() && !member.name.starts_with('/'));
    }
    Ok(())
}

/// Gives every block that looks like a header a right checksum: most changes of a header would end there.
fn seal_headers(bytes: &mut [u8]) {
    for block in bytes.as_chunks_mut::<512>().0 {
        if block[257..262] == *b"ustar" {
            seal(block);
        }
    }
}

const ALL: [&[u8]; 6] = [USTAR, GNU, PAX, WEBDATASET, SPARSE_GNU, SPARSE_POSIX];

proptest! {
    #![proptest_config(cases(4000))]

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
        check_anything(&bytes)?;
    }

    #[test]
    fn a_damaged_archive_gives_only_members_inside_it(
        (which, other) in (0..ALL.len(), 0..ALL.len()),
        changes in changes(),
        is_sealed: bool,
    ) {
        let mut bytes = damaged(ALL[which], ALL[other], &changes);
        if is_sealed {
            seal_headers(&mut bytes);
        }
        check_anything(&bytes)?;
    }
}
