use super::*;
use crate::LeftOut;
use crate::fixture::{FeedFolder, sine};
use crate::show_report;
use tandem_corpus::OpenOptions;

fn open(folder: &FeedFolder, name: &str) -> Dataset {
    Dataset::open(folder.path().join(name), &OpenOptions::default()).unwrap()
}

fn run(dataset: Dataset, options: &CheckOptions) -> CorpusReport {
    check(dataset, options, |_| ()).unwrap().report
}

/// Problems as `line kind`.
fn shown(report: &CorpusReport) -> Vec<String> {
    report.problems.iter().map(|p| format!("{} {}", p.line.unwrap_or(0), p.kind.words())).collect()
}

/// Six rows, five of them with a problem.
fn faulty(name: &str) -> FeedFolder {
    let folder = FeedFolder::new(name);
    folder.write("metadata.csv", "gone|a\nshort|b\nlong|c\nclips|d 中\ngood|e\nbusy|a text of many letters\n");
    folder.wav("wavs/gone.wav", &sine(22_050, 1.0));
    folder.wav("wavs/short.wav", &sine(22_050, 0.1));
    folder.wav("wavs/long.wav", &sine(8_000, 3.5));
    let mut loud = sine(16_000, 1.0);
    loud.samples.iter_mut().for_each(|x| *x = x.saturating_mul(9));
    folder.wav("wavs/clips.wav", &loud);
    folder.wav("wavs/good.wav", &sine(192_000, 1.0));
    folder.wav("wavs/busy.wav", &sine(22_050, 0.25));
    folder
}

#[test]
fn every_problem_is_found_with_any_number_of_workers() {
    let folder = faulty("check");
    let mut reports = Vec::new();
    for num_workers in [1, 2, 5] {
        folder.wav("wavs/gone.wav", &sine(22_050, 1.0));
        let dataset = open(&folder, "");
        // After the folder is listed, before the file is opened.
        std::fs::remove_file(folder.path().join("wavs/gone.wav")).unwrap();
        let mut last = ScanProgress { done: 0, total: 0 };
        let options = CheckOptions { num_workers, max_seconds: 3.0, ..CheckOptions::default() };
        let report = check(dataset, &options, |progress| last = progress).unwrap().report;
        assert_eq!((last.done, last.total), (6, 6));
        assert_eq!(
            shown(&report),
            ["1 missing audio", "2 too short", "3 too long", "4 clipping", "4 unknown symbol", "6 too short"]
        );
        assert!(report.problems[5].detail.contains("too short for a text of 43 symbols"), "{}", report.problems[5]);
        reports.push(report);
    }
    assert!(reports.windows(2).all(|pair| pair[0] == pair[1]));
    let report = &reports[0];
    assert_eq!((report.num_utterances, report.seconds.count()), (6, 5));
    // Of the rows that train, two have a problem that leaves nothing out.
    let training = &report.training;
    let expected = LeftOut { missing_audio: 1, unknown_symbol: 1, too_short: 1, ..LeftOut::default() };
    assert_eq!((training.left_out, training.num_utterances, training.num_validation), (expected, 2, 1));
    assert_eq!(report.trained_on, BTreeMap::from([(ProblemKind::TooShort, 1), (ProblemKind::TooLong, 1)]));
    let shapes = report.shapes.as_ref().unwrap();
    assert_eq!((shapes.batch, shapes.buckets.len(), shapes.buckets[0].num_utterances), (2, 1, 2));
    let shown = show_report(report, 9);
    assert!(shown.contains("1 of 2 rows each, for ") && shown.contains("too long (1), of which 1 would be trained on"));
    assert!(shapes.others.len() == 1 && shapes.others[0] == OtherPadding { num_buckets: 1, padding: shapes.padding });
}

#[test]
fn rows_of_a_manifest_are_compared_with_their_recording() {
    let folder = FeedFolder::new("check-manifest");
    folder.wav("long.wav", &sine(16_000, 4.0));
    let row = |rest: &str| format!("{{\"audio_filepath\":\"long.wav\",\"text\":\"hello\"{rest}}}\n");
    let rows = [
        row(",\"duration\":4.05"),
        row(",\"offset\":1,\"duration\":1"),
        row(",\"offset\":3.5,\"duration\":2"),
        row(",\"offset\":9"),
        row(",\"offset\":2"),
        "{\"audio_filepath\":\"./long.wav\",\"text\":\"hello\",\"duration\":2}\n".to_owned(),
        "{\"audio_filepath\":\"none.wav\",\"text\":\"hello\",\"duration\":2}\n".to_owned(),
    ];
    folder.write("list.jsonl", rows.concat());
    let report = run(open(&folder, "list.jsonl"), &CheckOptions::default());
    assert_eq!(shown(&report), ["3 bad number", "4 bad number", "6 bad number", "7 missing audio"]);
    assert_eq!(report.seconds.total(), 4.0 + 1.0 + 2.0 + 4.0);
}

#[test]
fn excluded_rows_are_not_checked() {
    let folder = faulty("check-excluded");
    folder.write("ids.txt", "short\nlong\nclips\nbusy\n");
    let exclude_ids = Some(folder.path().join("ids.txt"));
    let dataset = Dataset::open(folder.path(), &OpenOptions { exclude_ids, ..OpenOptions::default() }).unwrap();
    let report = run(dataset, &CheckOptions::default());
    assert_eq!((shown(&report), report.num_utterances, report.num_excluded), (vec![], 2, 4));
}

#[test]
fn a_corpus_in_another_language_gets_a_hint() {
    let folder = FeedFolder::new("check-hint");
    folder.write("metadata.csv", "a|سلام دنیا\n");
    folder.wav("wavs/a.wav", &sine(22_050, 1.0));
    let english = run(open(&folder, ""), &CheckOptions::default());
    assert_eq!((shown(&english), english.hints.len()), (vec!["1 unknown symbol".to_owned()], 1));
    let persian = CheckOptions { lang: Some("fa".into()), ..CheckOptions::default() };
    let report = run(open(&folder, ""), &persian);
    assert!(report.passed() && report.hints.is_empty());
}

#[test]
fn an_empty_corpus_is_no_crash() {
    let folder = FeedFolder::new("check-nothing");
    folder.write("metadata.csv", "");
    let report = run(open(&folder, ""), &CheckOptions::default());
    assert_eq!(
        (shown(&report), report.num_utterances, report.shapes.is_none()),
        (vec!["0 no rows".to_owned()], 0, true)
    );
    assert!(show_report(&report, 9).contains("no utterance can train"));
}

#[test]
fn lengths_are_saved_for_the_run() {
    let folder = faulty("check-lengths");
    let index_folder = folder.path().join("cache");
    let mut checked = check(open(&folder, ""), &CheckOptions::default(), |_| ()).unwrap();
    checked.keep_lengths(&index_folder).unwrap();
    let mut dataset = open(&folder, "");
    let (index, _) = LengthIndex::open(&index_folder, &dataset);
    assert!(index.apply(&mut dataset, &mut Vec::new()).is_empty());
    let total: f64 = dataset.samples().iter().filter_map(|(_, sample)| sample.duration_s).sum();
    assert!((total - checked.report.seconds.total()).abs() < 1e-9);
}

#[test]
fn shapes_of_a_mixture_are_those_of_the_repeated_rows() {
    let folder = FeedFolder::new("check-mixture");
    for (source, seconds) in [("short", 1.0), ("long", 3.0)] {
        folder.write(&format!("{source}/metadata.csv"), (0..12).map(|i| format!("{i}|hello\n")).collect::<String>());
        let clip = |i: i32| sine(22_050, seconds + f64::from(i) / 10.0);
        (0..12).for_each(|i| folder.wav(&format!("{source}/wavs/{i}.wav"), &clip(i)));
    }
    let shapes = |weight: u32| {
        let sources = format!("sources: [{{path: short}}, {{path: long, weight: {weight}}}]\n");
        folder.write("corpus.yaml", sources);
        let options = CheckOptions { batch: 4, ..CheckOptions::default() };
        let checked = check(open(&folder, "corpus.yaml"), &options, |_| ()).unwrap();
        // What a run has.
        let rows = checked.dataset.split(options.seed).train;
        let survey = TrainingSetOptions { with_text: true, ..TrainingSetOptions::default() };
        let training_set = TrainingSet::survey(Arc::clone(&checked.dataset), &rows, &survey).unwrap();
        let plan = training_set.bucket_plan(NUM_BUCKETS, 4).unwrap();
        let shapes = checked.report.shapes.unwrap();
        let buckets: Vec<Bucket> = shapes.buckets.iter().map(|used| used.bucket.clone()).collect();
        assert_eq!((&buckets[..], shapes.padding), (plan.buckets(), plan.padding(options.seed)));
        assert_eq!(shapes.others[1], OtherPadding { num_buckets: 2, padding: shapes.padding });
        let repeats = rows.iter().map(|row| training_set.dataset().repeats(*row) as usize).sum::<usize>();
        assert_eq!(shapes.buckets.iter().map(|used| used.num_utterances).sum::<usize>(), repeats);
        assert_eq!(checked.report.training.num_utterances, rows.len());
        (repeats > rows.len(), buckets)
    };
    let ((once, plain), (repeated, weighted)) = (shapes(1), shapes(5));
    assert!(!once && repeated && plain != weighted);
}
