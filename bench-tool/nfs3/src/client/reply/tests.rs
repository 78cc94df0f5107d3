use proptest::prelude::*;

use super::*;

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// A `fattr3` of a regular file of 0x100000002 bytes with number 9.
const FATTR: [u32; 21] = [
    1, 0o644, 1, 1000, 1000, 1, 2, 0, 4096, 0, 0, 0, 7, 0, 9, 11, 12, 13, 14, 15, 16,
];

/// A `wcc_data` with all that it may have.
fn wcc_words() -> Vec<u32> {
    [&[1, 0, 5, 1, 2, 3, 4, 1][..], &FATTR].concat()
}

/// Whole it decodes; every cut of it, and what has a word behind it, is malformed.
fn is_read_whole<T: std::fmt::Debug>(
    what: &str,
    whole: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, ReplyError>,
) {
    assert!(decode(whole).is_ok(), "{what}: {:?}", decode(whole));
    for end in 0..whole.len() {
        let result = decode(&whole[..end]);
        assert!(
            matches!(result, Err(ReplyError::Malformed(_))),
            "{what} cut at {end}: {result:?}"
        );
    }
    let result = decode(&[whole, &[0; 4]].concat());
    assert!(
        matches!(result, Err(ReplyError::Malformed(Malformed::Field(error))) if error.reason == Reason::TrailingBytes),
        "{what} with a word behind it: {result:?}"
    );
}

#[test]
fn results_are_those_of_the_rfc_and_none_that_is_cut_or_goes_on() {
    let attributes = words(&[&[0][..], &FATTR].concat());
    let told = getattr(&attributes).unwrap();
    assert_eq!((told.size_bytes, told.file_number), (0x1_0000_0002, 9));
    is_read_whole("GETATTR", &attributes, getattr);

    let found = words(&[&[0, 3, 0x0102_0300, 1][..], &FATTR, &[0]].concat());
    assert_eq!(lookup(&found).unwrap().as_bytes(), [1, 2, 3]);
    is_read_whole("LOOKUP", &found, lookup);

    let made = words(&[&[0, 1, 3, 0x0102_0300, 0][..], &wcc_words()].concat());
    assert_eq!(created(&made).unwrap().unwrap().as_bytes(), [1, 2, 3]);
    is_read_whole("CREATE", &made, created);
    assert_eq!(created(&words(&[0, 0, 0, 0, 0])), Ok(None));

    is_read_whole(
        "SETATTR",
        &words(&[&[0][..], &wcc_words()].concat()),
        changed,
    );

    let written = words(&[&[0][..], &wcc_words(), &[100, 2, 0x0a, 0x0b]].concat());
    let told = write(&written, 100).unwrap();
    assert_eq!((told.count_bytes, told.committed.number()), (100, 2));
    assert_eq!(told.verifier, [0, 0, 0, 0x0a, 0, 0, 0, 0x0b]);
    let more = ReplyError::TooMuch {
        asked: 99,
        told: 100,
    };
    assert_eq!(write(&written, 99), Err(more));
    is_read_whole("WRITE", &written, |results| write(results, 100));

    let committed = words(&[&[0][..], &wcc_words(), &[0x0a, 0x0b]].concat());
    assert_eq!(commit(&committed).unwrap().verifier, told.verifier);
    is_read_whole("COMMIT", &committed, commit);

    let info = words(&[&[0, 1][..], &FATTR, &[1, 2, 3, 4, 5, 6, 7, 0, 8, 9, 10, 11]].concat());
    let told = fsinfo(&info).unwrap();
    assert_eq!((told.read_bytes_max, told.write_bytes_max), (1, 4));
    assert_eq!(told.file_bytes_max, 8);
    is_read_whole("FSINFO", &info, fsinfo);

    assert_eq!(null(&[]), Ok(()));
    assert!(null(&[0; 4]).is_err());

    let root = words(&[0, 2, 0xabcd_0000, 2, 1, 390_131]);
    assert_eq!(mounted(&root).unwrap().as_bytes(), [0xab, 0xcd]);
    is_read_whole("MNT", &root, mounted);
    assert!(
        mounted(&words(&[0, 0, 65])).is_err(),
        "more flavors than there are"
    );
}

fn read_results(told: u32, there: u32, data: &[u8]) -> Vec<u8> {
    let head = words(&[&[0, 1][..], &FATTR, &[told, 1, there]].concat());
    [&head, data].concat()
}

#[test]
fn data_of_a_read_is_in_the_results_or_beside_them() {
    let here = read_results(5, 5, &[1, 2, 3, 4, 5, 0, 0, 0]);
    let expected = ReadReply {
        count_bytes: 5,
        is_end: true,
        data: ReadData::Inline(&[1, 2, 3, 4, 5]),
    };
    assert_eq!(read(&here, 8, 0), Ok(expected));
    is_read_whole("READ", &here, |results| {
        read(results, 8, 0).map(|read| read.count_bytes)
    });
    let more = ReplyError::TooMuch { asked: 4, told: 5 };
    assert_eq!(read(&here, 4, 0), Err(more));

    // Without padding, with padding in the item, and with padding left in the results.
    let bulk = ReadReply {
        data: ReadData::Bulk,
        ..expected
    };
    assert_eq!(read(&read_results(5, 5, &[]), 8, 5), Ok(bulk));
    assert_eq!(read(&read_results(5, 5, &[]), 8, 8), Ok(bulk));
    assert_eq!(read(&read_results(5, 5, &[0; 3]), 8, 5), Ok(bulk));
    let mismatch = |there| Err(ReplyError::CountMismatch { told: 5, there });
    assert_eq!(read(&read_results(5, 5, &[]), 8, 4), mismatch(4));
    assert_eq!(read(&read_results(5, 5, &[]), 8, 6), mismatch(6));
    assert_eq!(read(&read_results(5, 4, &[0; 4]), 8, 0), mismatch(4));
    let longer = read_results(5, 5, &[0; 4]);
    let result = read(&longer, 8, 5);
    assert!(
        matches!(result, Err(ReplyError::Malformed(_))),
        "{result:?}"
    );
}

#[test]
fn failure_is_reported_by_its_name_with_what_follows_it() {
    let stale = words(&[70, 0]);
    assert_eq!(read(&stale, 8, 0), Err(ReplyError::Status(Status::Stale)));
    let error = write(&words(&[28, 0, 0]), 8).unwrap_err();
    assert_eq!(error.to_string(), "NFS3ERR_NOSPC");
    assert_eq!(
        getattr(&words(&[70])),
        Err(ReplyError::Status(Status::Stale))
    );
    let cut = write(&words(&[28]), 8);
    assert!(matches!(cut, Err(ReplyError::Malformed(_))), "{cut:?}");
    let unknown = getattr(&words(&[4711]));
    assert!(
        matches!(unknown, Err(ReplyError::Malformed(_))),
        "{unknown:?}"
    );
    let refused = mounted(&words(&[13]));
    assert_eq!(refused, Err(ReplyError::Mount(MountStatus::Access)));
    assert_eq!(refused.unwrap_err().to_string(), "MNT3ERR_ACCES");
}

#[test]
fn a_handle_has_64_bytes_at_most() {
    let results = |bytes: u32| {
        let body = vec![7; bytes.next_multiple_of(4) as usize];
        [words(&[0, bytes]), body, words(&[0, 0])].concat()
    };
    assert_eq!(lookup(&results(64)).unwrap().as_bytes().len(), 64);
    let long = lookup(&results(65));
    assert!(matches!(long, Err(ReplyError::Malformed(_))), "{long:?}");
}

proptest! {
    #[test]
    fn no_results_panic(results in prop::collection::vec(any::<u8>(), 0..300), asked: u32, bulk in 0_usize..64) {
        let _ = (getattr(&results), lookup(&results), created(&results), changed(&results));
        let _ = (write(&results, asked), commit(&results), fsinfo(&results), null(&results));
        let _ = mounted(&results);
        if let Ok(read) = read(&results, asked, bulk) {
            prop_assert!(read.count_bytes <= asked);
            if let ReadData::Inline(data) = read.data {
                prop_assert_eq!(data.len(), read.count_bytes as usize);
            }
        }
    }

    #[test]
    fn the_data_of_a_read_comes_back_as_it_was(data in prop::collection::vec(any::<u8>(), 1..100)) {
        let bytes = u32::try_from(data.len()).unwrap();
        let mut padded = data.clone();
        padded.resize(data.len().next_multiple_of(4), 0);
        let results = read_results(bytes, bytes, &padded);
        prop_assert_eq!(read(&results, bytes, 0).unwrap().data, ReadData::Inline(&data[..]));
    }
}
