use super::*;
use crate::workloads::nfs::steps::{Access, NfsOp};

pub(crate) fn work(bytes: u32) -> Work {
    let mut targets = Targets::new(FileHandle::new(b"root").unwrap(), 1);
    targets.add(FileHandle::new(b"one").unwrap());
    targets.add(FileHandle::new(b"two").unwrap());
    Work {
        plan: StepPlan {
            op: NfsOp::Read,
            read_percent: 50,
            access: Access::Sequential,
            bytes,
            file_bytes: u64::from(bytes) * 100,
            files: 2,
            seed: 1,
        },
        targets,
        stability: Stability::DataSync,
        verify: true,
    }
}

fn step(kind: StepKind) -> Step {
    Step {
        kind,
        file: 1,
        block: 7,
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// The results of a READ without attributes.
fn read_results(told: u32, is_end: bool, data: &[u8]) -> Vec<u8> {
    let mut results = words(&[0, 0, told, is_end.into(), told]);
    results.extend_from_slice(data);
    results.resize(results.len().next_multiple_of(4), 0);
    results
}

fn payload(work: &Work, step: Step) -> Vec<u8> {
    let mut payload = vec![0; work.plan.bytes as usize];
    let (head, tail) = payload.split_at_mut(5);
    work.fill(step, 0, head);
    work.fill(step, 5, tail);
    payload
}

const NONE: [&[u8]; 0] = [];

fn check(work: &Work, step: Step, results: &[u8], beside: &[&[u8]]) -> Result<Done, StepError> {
    let reply = StepReply {
        results,
        data_bytes: beside.iter().map(|piece| piece.len()).sum(),
        data: beside.iter().copied(),
    };
    work.check(step, reply)
}

fn check_alone(work: &Work, step: Step, results: &[u8]) -> Result<Done, StepError> {
    check(work, step, results, &NONE)
}

#[test]
fn read_data_is_checked_in_and_next_to_the_results() {
    let work = work(5001);
    let step = step(StepKind::Read);
    let data = payload(&work, step);
    let done = Done {
        bytes: 5001,
        verifier: None,
    };
    let here = read_results(5001, false, &data);
    assert_eq!(check(&work, step, &here, &NONE), Ok(done));

    let beside = read_results(5001, true, &[]);
    let padded = [&data[..], &[0; 3]].concat();
    for pieces in [
        vec![&data[..]],
        vec![&data[..4096], &data[4096..]],
        vec![&padded[..]],
    ] {
        assert_eq!(check(&work, step, &beside, &pieces), Ok(done));
    }
    let other = Step { block: 8, ..step };
    assert_eq!(check(&work, other, &here, &NONE), Err(StepError::Content));
    let mut wrong = data.clone();
    wrong[5000] ^= 1;
    let pieces = [&wrong[..4096], &wrong[4096..]];
    assert_eq!(
        check(&work, step, &beside, &pieces),
        Err(StepError::Content)
    );
}

#[test]
fn a_read_may_be_short_but_not_because_the_file_ends() {
    let work = work(5001);
    let step = step(StepKind::Read);
    let data = payload(&work, step);
    let check = |told, is_end, data: &[u8]| {
        let results = read_results(told, is_end, data);
        check_alone(&work, step, &results)
    };
    assert_eq!(check(5000, false, &data[..5000]).unwrap().bytes, 5000);
    assert_eq!(check(5000, true, &data[..5000]), Err(StepError::Short));
    assert_eq!(check(0, false, &[]), Err(StepError::Short));
}

#[test]
fn a_write_keeps_the_promise_that_was_asked_for() {
    let work = work(5001);
    let step = step(StepKind::Write);
    let check = |bytes, committed| {
        let results = words(&[0, 0, 0, bytes, committed, 1, 2]);
        check_alone(&work, step, &results)
    };
    let done = Done {
        bytes: 5001,
        verifier: Some([0, 0, 0, 1, 0, 0, 0, 2]),
    };
    assert_eq!(check(5001, 1), Ok(done));
    assert_eq!(check(5001, 2), Ok(done));
    assert_eq!(check(5001, 0), Err(StepError::LessStable));
    assert_eq!(check(0, 2), Err(StepError::NothingWritten));
    let error = check(5002, 2).unwrap_err();
    assert_eq!(error.name(), "wrong_counts");
    let results = words(&[28, 0, 0]);
    let error = check_alone(&work, step, &results).unwrap_err();
    assert_eq!(error.name(), "nfs3err_nospc");
}

#[test]
fn getattr_tells_of_a_file_or_of_the_root() {
    let mut work = work(1);
    let mut fattr = [0; 22];
    fattr[1] = 1;
    let file = words(&fattr);
    fattr[1] = 2;
    let folder = words(&fattr);
    let step = step(StepKind::Getattr);
    let check = |work: &Work, results: &[u8]| check_alone(work, step, results);
    assert_eq!(check(&work, &file), Ok(Done::default()));
    assert_eq!(check(&work, &folder), Err(StepError::Kind));
    work.targets = Targets::new(FileHandle::new(b"root").unwrap(), 1);
    assert_eq!(check(&work, &folder), Ok(Done::default()));
    let Request::Getattr(object) = work.request(step) else {
        panic!("no GETATTR")
    };
    assert_eq!(object.as_bytes(), b"root");
}

#[test]
fn blocks_that_were_written_are_known() {
    let plan = work(1).plan;
    let mut written = Written::new(&plan, true);
    for (file, block) in [(0, 0), (0, 99), (1, 0), (1, 27)] {
        written.note(Step {
            kind: StepKind::Write,
            file,
            block,
        });
    }
    let mut all = Written::default();
    all.merge(&written);
    let mut other = Written::new(&plan, true);
    other.note(step(StepKind::Write));
    all.merge(&other);
    let blocks: Vec<_> = all.blocks().collect();
    assert_eq!(blocks, [(0, 0), (0, 99), (1, 0), (1, 7), (1, 27)]);
    let mut unwanted = Written::new(&plan, false);
    unwanted.note(step(StepKind::Write));
    assert_eq!(unwanted.blocks().count(), 0);
}

#[test]
fn one_status_alone_asks_for_the_call_later() {
    let credential = Credential::new(0, 0, "test");
    let mut workload = NfsWorkload::new(Arc::new(work(1)), credential, 0, 1);
    let mut errors = Errors::default();
    let mut verdict = |status: Status| {
        let results = words(&[status.number(), 0, 0]);
        workload.check_reply(
            step(StepKind::Write),
            StepReply::whole(&results),
            &mut errors,
        )
    };
    assert_eq!(verdict(Status::Jukebox), Verdict::Later);
    assert_eq!(verdict(Status::Io), Verdict::Wrong);
    assert_eq!((errors.total(), errors.of("nfs3err_io")), (1, 1));
    NfsWorkload::given_up(&mut errors);
    assert_eq!(errors.of("nfs3err_jukebox"), 1);
}
