//! Greedy decoding: which token comes next, and when to stop.
//!
//! A [`Generator`] is fed the logits of one step at a time and keeps what was chosen, so it can be driven by any
//! source of logits. One pass over the vocabulary a step: a ban is looked up only for a token that would win.

use crate::{Error, Result};

/// Bans the token that would complete an n-gram seen shortly before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRepeatNgram {
    size: usize,
    window: usize,
}

impl NoRepeatNgram {
    /// N-grams of `size` tokens, looked for in the last `window` tokens.
    ///
    /// # Errors
    /// When `size` is zero or does not fit into `window`: such a rule could never ban anything.
    pub fn new(size: usize, window: usize) -> Result<Self> {
        if (1..=window).contains(&size) {
            return Ok(Self { size, window });
        }
        Err(Error::input("not an n-gram rule")
            .found(format!("size {size}, window {window}"))
            .expected("a size from 1 to the window"))
    }

    /// The tokens that may not follow `history` (prompt and output): the last token of every n-gram that lies in
    /// the last `window` tokens and begins with the last `size - 1` tokens. May name a token twice.
    #[must_use]
    pub fn banned(&self, history: &[u32]) -> Vec<u32> {
        let prefix = self.size - 1;
        let Some(current) = history.len().checked_sub(prefix).and_then(|start| history.get(start..)) else {
            return Vec::new();
        };
        let window = &history[history.len().saturating_sub(self.window)..];
        window
            .windows(self.size)
            .filter(|ngram| ngram.starts_with(current))
            .filter_map(|ngram| ngram.last().copied())
            .collect()
    }
}

/// Bans a token that would be one too many of the same in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunCap(usize);

impl RunCap {
    /// Bans the `cap`-th identical token in a row.
    ///
    /// # Errors
    /// When `cap` is less than 2: every token is the first of its run.
    pub fn new(cap: usize) -> Result<Self> {
        if cap >= 2 {
            return Ok(Self(cap));
        }
        Err(Error::input("not a cap on runs of identical tokens").found(cap).expected("2 or more"))
    }

    /// The token that may not follow `output`, if its last `cap - 1` tokens are all the same.
    #[must_use]
    pub fn banned(&self, output: &[u32]) -> Option<u32> {
        let run = output.get(output.len().checked_sub(self.0 - 1)?..)?;
        let &last = run.last()?;
        run.iter().all(|&id| id == last).then_some(last)
    }
}

/// How tokens are chosen and when generation ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Tokens that end the text.
    pub stop_ids: Vec<u32>,
    /// Most tokens to generate, the stop token included.
    pub max_tokens: usize,
    /// Most tokens of prompt and output together.
    pub context: usize,
    /// The n-gram rule, over prompt and output.
    pub no_repeat_ngram: Option<NoRepeatNgram>,
    /// The run rule, over the output.
    pub run_cap: Option<RunCap>,
}

/// Why generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// This stop token was chosen.
    StopToken(u32),
    /// The limit on generated tokens was reached.
    MaxTokens,
    /// Prompt and output fill the context.
    ContextFull,
}

impl std::fmt::Display for StopReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::StopToken(id) => write!(f, "stop token {id}"),
            Self::MaxTokens => f.write_str("the most tokens to generate"),
            Self::ContextFull => f.write_str("the end of the cache"),
        }
    }
}

/// What a step leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Feed this token and come back with its logits.
    Token(u32),
    /// Generation has ended.
    Stop(StopReason),
}

/// One generation under way.
#[derive(Debug, Clone)]
pub struct Generator {
    policy: Policy,
    history: Vec<u32>,
    prompt: usize,
    stopped: Option<StopReason>,
}

impl Generator {
    /// A generation that follows `prompt`.
    #[must_use]
    pub fn new(policy: Policy, prompt: &[u32]) -> Self {
        Self { policy, history: prompt.to_vec(), prompt: prompt.len(), stopped: None }
    }

    /// The generated tokens so far; a stop token that was chosen is the last of them.
    #[must_use]
    pub fn output(&self) -> &[u32] {
        &self.history[self.prompt..]
    }

    /// Chooses the next token from the logits `[vocabulary]` that follow everything so far.
    ///
    /// A token that reaches a limit is still part of the output. After a stop, the answer stays the same.
    ///
    /// # Errors
    /// When a logit is not a number, or no token is left to choose.
    pub fn next(&mut self, logits: &[f32]) -> Result<Next> {
        if let Some(reason) = self.stopped.or_else(|| self.limit_reached()) {
            return Ok(self.stop(reason));
        }
        let id = argmax(logits, &self.banned()).map_err(|e| e.at(format!("decode step {}", self.output().len())))?;
        self.history.push(id);
        if self.policy.stop_ids.contains(&id) {
            return Ok(self.stop(StopReason::StopToken(id)));
        }
        Ok(match self.limit_reached() {
            Some(reason) => self.stop(reason),
            None => Next::Token(id),
        })
    }

    fn stop(&mut self, reason: StopReason) -> Next {
        self.stopped = Some(reason);
        Next::Stop(reason)
    }

    fn limit_reached(&self) -> Option<StopReason> {
        if self.output().len() >= self.policy.max_tokens {
            Some(StopReason::MaxTokens)
        } else if self.history.len() >= self.policy.context {
            Some(StopReason::ContextFull)
        } else {
            None
        }
    }

    fn banned(&self) -> Vec<u32> {
        let mut banned = self.policy.no_repeat_ngram.map(|rule| rule.banned(&self.history)).unwrap_or_default();
        banned.extend(self.policy.run_cap.and_then(|cap| cap.banned(self.output())));
        banned
    }
}

/// The id of the largest logit that is not banned; of equal ones the lowest.
///
/// # Errors
/// When a logit is not a number, or every token is banned.
pub fn argmax(logits: &[f32], banned: &[u32]) -> Result<u32> {
    let mut best: Option<(u32, f32)> = None;
    for (id, &logit) in (0_u32..).zip(logits) {
        if logit.is_nan() {
            return Err(Error::check("a logit is not a number").at(format!("token {id}")));
        }
        if best.is_none_or(|(_, most)| logit > most) && !banned.contains(&id) {
            best = Some((id, logit));
        }
    }
    best.map(|(id, _)| id).ok_or_else(|| {
        Error::check("no token is left to choose").found(format!("{} logits, {} bans", logits.len(), banned.len()))
    })
}

#[cfg(test)]
mod tests;
