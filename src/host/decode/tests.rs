use proptest::prelude::*;

use super::*;

fn free() -> Policy {
    Policy { stop_ids: vec![9], max_tokens: 100, context: 100, no_repeat_ngram: None, run_cap: None }
}

/// Logits over ten tokens with these ids in order of preference.
fn preferring(ids: &[u32]) -> Vec<f32> {
    let mut logits = vec![0.0; 10];
    for (rank, &id) in ids.iter().enumerate() {
        logits[id as usize] = 10.0 - rank as f32;
    }
    logits
}

/// Feeds one preference a step until generation ends or the script does.
fn play(policy: Policy, prompt: &[u32], script: &[&[u32]]) -> (Vec<u32>, Option<StopReason>) {
    let mut generator = Generator::new(policy, prompt);
    for ids in script {
        if let Next::Stop(reason) = generator.next(&preferring(ids)).unwrap() {
            return (generator.output().to_vec(), Some(reason));
        }
    }
    (generator.output().to_vec(), None)
}

#[test]
fn of_equal_logits_the_lowest_id_wins() {
    assert_eq!(argmax(&[0.0, 2.0, 2.0], &[]).unwrap(), 1);
    assert_eq!(argmax(&[-0.0, 0.0], &[]).unwrap(), 0);
    assert_eq!(argmax(&[f32::NEG_INFINITY; 3], &[0]).unwrap(), 1);
}

#[test]
fn a_logit_that_is_not_a_number_names_step_and_token() {
    let mut generator = Generator::new(free(), &[0]);
    generator.next(&preferring(&[3])).unwrap();
    let mut logits = preferring(&[3]);
    logits[8] = f32::NAN;
    let error = generator.next(&logits).unwrap_err().to_string();
    assert_eq!(error, "decode step 1: token 8: a logit is not a number");
}

#[test]
fn no_logits_and_all_banned_are_errors() {
    assert!(argmax(&[], &[]).is_err());
    assert!(argmax(&[1.0, 2.0], &[1, 0]).is_err());
}

#[test]
fn ends_at_a_stop_token_and_stays_there() {
    let (output, stop) = play(free(), &[0], &[&[3], &[9], &[4]]);
    assert_eq!((output, stop), (vec![3, 9], Some(StopReason::StopToken(9))));
    let mut generator = Generator::new(free(), &[0]);
    generator.next(&preferring(&[9])).unwrap();
    assert_eq!(generator.next(&preferring(&[4])).unwrap(), Next::Stop(StopReason::StopToken(9)));
    assert_eq!(generator.output(), [9]);
}

#[test]
fn ends_at_either_limit_with_the_last_token_kept() {
    let script: [&[u32]; 5] = [&[1], &[2], &[3], &[4], &[5]];
    let few = Policy { max_tokens: 2, ..free() };
    assert_eq!(play(few, &[0; 4], &script), (vec![1, 2], Some(StopReason::MaxTokens)));
    let short = Policy { context: 7, ..free() };
    assert_eq!(play(short, &[0; 4], &script), (vec![1, 2, 3], Some(StopReason::ContextFull)));
    let full = Policy { context: 4, ..free() };
    assert_eq!(play(full, &[0; 4], &script), (vec![], Some(StopReason::ContextFull)));
}

#[test]
fn an_ngram_is_not_repeated_inside_the_window_and_is_outside() {
    let rule = |window| Policy { no_repeat_ngram: Some(NoRepeatNgram::new(2, window).unwrap()), ..free() };
    let script: [&[u32]; 4] = [&[1], &[2], &[1], &[2, 5]];
    assert_eq!(play(rule(4), &[0], &script).0, [1, 2, 1, 5]);
    assert_eq!(play(rule(3), &[0], &script).0, [1, 2, 1, 5]);
    assert_eq!(play(rule(2), &[0], &script).0, [1, 2, 1, 2]);
}

#[test]
fn ngrams_of_the_prompt_count() {
    let policy = Policy { no_repeat_ngram: Some(NoRepeatNgram::new(3, 10).unwrap()), ..free() };
    assert_eq!(play(policy, &[0, 4, 5, 6, 7, 4, 5], &[&[6, 2]]).0, [2]);
}

#[test]
fn a_run_is_capped_and_begins_anew_after_another_token() {
    let policy = Policy { run_cap: Some(RunCap::new(3).unwrap()), ..free() };
    let script: [&[u32]; 6] = [&[1, 2]; 6];
    assert_eq!(play(policy.clone(), &[0], &script).0, [1, 1, 2, 1, 1, 2]);
    // The prompt, with its long run of image tokens, is no part of a run.
    assert_eq!(play(policy, &[1, 1, 1, 1], &script[..2]).0, [1, 1]);
}

#[test]
fn rules_that_can_never_apply_are_refused() {
    assert!(NoRepeatNgram::new(0, 4).is_err());
    assert!(NoRepeatNgram::new(5, 4).is_err());
    assert!(RunCap::new(0).is_err());
    assert!(RunCap::new(1).is_err());
}

/// The elements of a 32-bit tensor in one of the golden reference files.
fn golden<T>(file: &str, tensor: &str, element: fn([u8; 4]) -> T) -> Vec<T> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/structure/unlimited-ocr/reference");
    let bytes = std::fs::read(format!("{folder}/{file}.safetensors")).unwrap();
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: serde_json::Value = serde_json::from_slice(header).unwrap();
    let [start, end]: [usize; 2] = serde_json::from_value(header[tensor]["data_offsets"].clone()).unwrap();
    data[start..end].as_chunks::<4>().0.iter().map(|&bytes| element(bytes)).collect()
}

/// The reference holds the logits along the free run, so the blocked run is known up to the first ban.
#[test]
fn chooses_as_transformers_does_up_to_the_first_ban() {
    let prompt = golden("prefill", "input_ids", u32::from_le_bytes);
    let first = golden("decode", "prefill_last_logits", f32::from_le_bytes);
    let later = golden("decode", "greedy_logits", f32::from_le_bytes);
    let greedy = golden("decode", "greedy_ids", u32::from_le_bytes);
    let blocked = golden("decode", "blocked_ids", u32::from_le_bytes);
    let ban = greedy.iter().zip(&blocked).position(|(free, blocked)| free != blocked).unwrap();
    assert!(ban > 0);

    let rule = NoRepeatNgram::new(3, 24).unwrap();
    let policy = Policy { stop_ids: vec![], context: 4096, no_repeat_ngram: Some(rule), ..free() };
    let mut generator = Generator::new(policy, &prompt);
    for logits in std::iter::once(first.as_slice()).chain(later.chunks(512)).take(ban + 1) {
        generator.next(logits).unwrap();
    }
    assert_eq!(generator.output(), &blocked[..=ban]);
}

/// The rule as it is worded, position by position.
fn banned_by_the_wording(size: usize, window: usize, history: &[u32]) -> Vec<u32> {
    let start = history.len().saturating_sub(window);
    let mut banned = Vec::new();
    for begin in start..history.len() {
        let end = begin + size;
        if end > history.len() {
            break;
        }
        let same = (0..size - 1).all(|k| history[begin + k] == history[history.len() - (size - 1) + k]);
        if same {
            banned.push(history[end - 1]);
        }
    }
    banned
}

proptest! {
    #[test]
    fn the_ngram_rule_equals_its_wording(
        size in 1_usize..6,
        extra in 0_usize..12,
        history in prop::collection::vec(0_u32..3, 0..40),
    ) {
        let window = size + extra;
        let rule = NoRepeatNgram::new(size, window).unwrap();
        prop_assert_eq!(rule.banned(&history), banned_by_the_wording(size, window, &history));
    }

    #[test]
    fn output_never_repeats_an_ngram_within_the_window(
        script in prop::collection::vec(prop::collection::vec(0_u32..4, 1..4), 1..60),
    ) {
        let (size, window) = (3, 12);
        let policy = Policy { no_repeat_ngram: Some(NoRepeatNgram::new(size, window).unwrap()), ..free() };
        let script: Vec<&[u32]> = script.iter().map(Vec::as_slice).collect();
        let (output, _) = play(policy, &[], &script);
        for end in size..=output.len() {
            let (before, ngram) = output[..end].split_at(end - size);
            let seen = &output[(end - 1).saturating_sub(window)..end - 1];
            prop_assert!(!seen.windows(size).any(|other| other == ngram), "{before:?} {ngram:?}");
        }
    }

    #[test]
    fn the_choice_is_the_first_largest_that_is_not_banned(
        logits in prop::collection::vec(-4_i8..4, 1..30),
        banned in prop::collection::vec(0_u32..30, 0..8),
    ) {
        let logits: Vec<f32> = logits.into_iter().map(f32::from).collect();
        let mut order: Vec<u32> = (0..logits.len() as u32).filter(|id| !banned.contains(id)).collect();
        order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
        prop_assert_eq!(argmax(&logits, &banned).ok(), order.first().copied());
    }
}
