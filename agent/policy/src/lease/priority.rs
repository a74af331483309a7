//! What one process that serves and trains runs next: decodes, then prompts and forward training in one pass, then
//! backward.
//!
//! The order is that of McGill (Chen and Balmau, "Inference and Fine-Tuning Co-serving for LoRA-Adapted LLMs",
//! scheduler). Its loop is corrected in five places:
//!
//! 1. Decodes go first, but after every [`Rules::admit_every`] of them a waiting prompt is admitted. Otherwise a prompt
//!    waits until the whole batch has drained.
//! 2. There is no forward training while the activations that wait for their backward pass are at their limit.
//! 3. When no sample is left, the rest goes backward, whatever the limit.
//! 4. A batch is bounded by its tokens, not by its requests.
//! 5. Backward training waits until no request is in the pool, as in the original. What it gets beside a busy pool is
//!    decided by leases, not by this order.

/// What the loop may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Tokens of one pass.
    pub batch_tokens: u32,
    /// Activations that may await their backward, tokens.
    pub activations: u32,
    /// Decodes in a row before a prompt that waits is read (S-LoRA's `max_wait_tokens`: 10).
    pub admit_every: u32,
}

/// What there is to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pools {
    /// Requests that decode.
    pub decodes: u32,
    /// Prompt tokens that wait.
    pub prompt: u32,
    /// Training tokens that wait for their forward.
    pub samples: u32,
    /// Training tokens that wait for their backward.
    pub activations: u32,
}

/// What runs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// One token for every request that decodes.
    Decode,
    /// One pass over prompts and training samples.
    Forward {
        /// Prompt tokens.
        prompt: u32,
        /// Training tokens.
        samples: u32,
    },
    /// Backward, one unit at a time, until something waits.
    Backward,
    /// Nothing.
    Nothing,
}

/// The loop.
#[derive(Clone, Copy, Debug)]
pub struct Priority {
    rules: Rules,
    /// Decodes since a prompt was read.
    decodes: u32,
}

impl Priority {
    /// Nothing done yet.
    #[must_use]
    pub const fn new(rules: Rules) -> Self {
        Self { rules, decodes: 0 }
    }

    /// What runs next; it is taken to run.
    pub fn next(&mut self, pools: Pools) -> Next {
        let Rules {
            batch_tokens,
            activations,
            admit_every,
        } = self.rules;
        let admits = pools.prompt > 0 && self.decodes >= admit_every;
        if pools.decodes > 0 && !admits {
            self.decodes = self.decodes.saturating_add(1);
            return Next::Decode;
        }
        let empty = pools.decodes == 0 && pools.prompt == 0;
        let full = pools.activations >= activations || pools.samples == 0;
        if empty && full && pools.activations > 0 {
            return Next::Backward;
        }
        let prompt = pools.prompt.min(batch_tokens);
        let room = activations.saturating_sub(pools.activations);
        let samples = pools.samples.min(batch_tokens - prompt).min(room);
        if prompt > 0 {
            self.decodes = 0;
        }
        if prompt + samples == 0 {
            return Next::Nothing;
        }
        Next::Forward { prompt, samples }
    }
}
