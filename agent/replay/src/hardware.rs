//! GPUs and models by name, and what an iteration of one on the other costs.
//!
//! The coefficients are least-squares fits to iteration times composed from the bf16 vLLM operator
//! latencies that ai-dynamo/aiconfigurator publishes (commit 095f58a5, Apache-2.0; vLLM 0.24.0 on
//! H200 and H100, 0.14.0 on A100). Mean error 0.6 to 4.3 %, largest 14.4 %. Memory bandwidths,
//! compute and PCIe rates are those of its system files, and stand for what the parts' data sheets
//! say. Bytes of KV cache per token are arithmetic: two tensors of every layer, bf16.
//!
//! A model that is not among them is described by its shape ([`Shape`]); its iteration times are
//! then scaled from the fitted model of the same GPU by the work they do: weights read and KV read
//! for a decode, multiplications for a prefill. Of a mixture of experts a pass reads those that its tokens choose
//! ([`Mixture`]), and a token multiplies with the ones it chose. That is arithmetic: no mixture was measured, and
//! what a
//! router, the exchange between experts and their small matrices cost beside is not in it.
//!
//! A GPU without fits is *scaled* ([`SCALED`], or one of one's own): its iteration times are those of the fitted GPU
//! that is nearest to it in bandwidth and compute, by the ratio of the bandwidths for what reads memory (weights, KV
//! cache) and of the compute for what multiplies (prompt tokens, a request of a batch). Scaled so, the fitted GPUs
//! come within 40 % of their own fits, a prompt and a decode of each model (a test). Every result names the GPU it was
//! scaled from.

use crate::engine::CostModel;
use crate::iteration::{Cost, Mixture};

/// A GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpu {
    /// Name on the command line.
    pub name: &'static str,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Memory bandwidth, bytes per second.
    pub memory_bytes_per_s: f64,
    /// PCIe, one direction, bytes per second.
    pub pcie_bytes_per_s: f64,
    /// Dense bf16 multiplications and additions, per second.
    pub flops: f64,
}

/// NVIDIA H200 SXM.
pub const H200: Gpu = Gpu {
    name: "h200",
    memory_bytes: 151_397_597_184,
    memory_bytes_per_s: 4.8e12,
    pcie_bytes_per_s: 64e9,
    flops: 989.4e12,
};

/// NVIDIA H100 SXM, 80 GB.
pub const H100: Gpu = Gpu {
    name: "h100",
    memory_bytes: 85_899_345_920,
    memory_bytes_per_s: 3.35e12,
    pcie_bytes_per_s: 64e9,
    flops: 989.4e12,
};

/// NVIDIA A100 SXM, 80 GB.
pub const A100: Gpu = Gpu {
    name: "a100",
    memory_bytes: 85_899_345_920,
    memory_bytes_per_s: 2.039e12,
    pcie_bytes_per_s: 32e9,
    flops: 312e12,
};

/// GPUs with fits.
pub const GPUS: [Gpu; 3] = [H100, H200, A100];

const GIB: u64 = 1 << 30;

/// GPUs whose iteration times are scaled, by NVIDIA's data sheets. Compute is without sparsity: half of what a sheet
/// states with it. A PCIe rate is half of what a sheet states for both directions.
pub const SCALED: [Gpu; 5] = [
    // "NVIDIA L40S": 48 GB, 864 GB/s, 362.05 TFLOPS bf16, PCIe Gen4 x16.
    Gpu {
        name: "l40s",
        memory_bytes: 48 * GIB,
        memory_bytes_per_s: 864e9,
        pcie_bytes_per_s: 32e9,
        flops: 362.05e12,
    },
    // "NVIDIA A10": 24 GB, 600 GB/s, 125 TFLOPS bf16, PCIe Gen4 x16.
    Gpu {
        name: "a10",
        memory_bytes: 24 * GIB,
        memory_bytes_per_s: 600e9,
        pcie_bytes_per_s: 32e9,
        flops: 125e12,
    },
    // "NVIDIA L4": 24 GB, 300 GB/s, 242 TFLOPS bf16 with sparsity, PCIe Gen4 x16.
    Gpu {
        name: "l4",
        memory_bytes: 24 * GIB,
        memory_bytes_per_s: 300e9,
        pcie_bytes_per_s: 32e9,
        flops: 121e12,
    },
    // "NVIDIA DGX B200", an eighth of it: 1,440 GB, 64 TB/s; "HGX B200": 36 PFLOPS bf16 with sparsity; PCIe Gen5 x16.
    Gpu {
        name: "b200",
        memory_bytes: 180 * GIB,
        memory_bytes_per_s: 8e12,
        pcie_bytes_per_s: 64e9,
        flops: 2.25e15,
    },
    // "RTX PRO 6000 Blackwell Workstation Edition": 96 GB, 1,792 GB/s, PCIe Gen5 x16; bf16 is an eighth of its
    // 4,000 TOPS of fp4 with sparsity.
    Gpu {
        name: "rtx-pro-6000",
        memory_bytes: 96 * GIB,
        memory_bytes_per_s: 1.792e12,
        pcie_bytes_per_s: 64e9,
        flops: 500e12,
    },
];

/// Every GPU that has a name.
pub fn all() -> impl Iterator<Item = Gpu> {
    GPUS.into_iter().chain(SCALED)
}

impl Gpu {
    /// Bytes that the weights of `models`, two bytes a parameter, leave of 90 % of its memory.
    #[must_use]
    pub fn left(&self, models: &[&Model]) -> Option<u64> {
        let weights = models.iter().map(|model| 2 * model.shape.parameters());
        (self.memory_bytes / 10 * 9)
            .checked_sub(weights.sum())
            .filter(|left| *left > 0)
    }

    /// The GPU whose fits stand for this one's, where it has none of its own: the nearest in bandwidth and compute.
    #[must_use]
    pub fn scaled_from(&self) -> Option<Self> {
        if GPUS.iter().any(|fitted| fitted.name == self.name) {
            return None;
        }
        self.nearest(&GPUS)
    }

    fn nearest(&self, among: &[Self]) -> Option<Self> {
        let apart = |other: &&Self| {
            let bandwidth = (self.memory_bytes_per_s / other.memory_bytes_per_s).ln();
            bandwidth.hypot((self.flops / other.flops).ln())
        };
        let nearer = |a: &&Self, b: &&Self| apart(a).total_cmp(&apart(b));
        among.iter().min_by(nearer).copied()
    }

    /// What costs `fit` on `from` costs here, by the data sheets of both.
    fn scale(&self, from: &Self, fit: CostModel) -> CostModel {
        let memory = from.memory_bytes_per_s / self.memory_bytes_per_s;
        let compute = from.flops / self.flops;
        let ([p0, p1, p2], [d0, d1, d2]) = (fit.prefill_ms, fit.decode_ms);
        CostModel {
            prefill_ms: [p0 * memory, p1 * compute, p2 * compute],
            decode_ms: [d0 * memory, d1 * compute, d2 * memory],
            ..fit
        }
    }
}

/// A transformer, as far as its speed and its KV cache depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Layers.
    pub layers: u32,
    /// Hidden size.
    pub hidden: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads; fewer than `heads` with grouped queries.
    pub kv_heads: u32,
    /// Inner size of the feed-forward part.
    pub inner: u32,
    /// Vocabulary.
    pub vocabulary: u32,
    /// Size of a head; 0: `hidden / heads`.
    pub head: u32,
    /// Feed-forward parts of a layer, each of `inner`, of which a router chooses; 1 where every token passes the
    /// only one.
    pub experts: u32,
    /// How many of them a token passes.
    pub chosen: u32,
}

/// What a model without experts, and with heads that share the hidden size, leaves out.
pub const DENSE: Shape = Shape {
    layers: 0,
    hidden: 0,
    heads: 0,
    kv_heads: 0,
    inner: 0,
    vocabulary: 0,
    head: 0,
    experts: 1,
    chosen: 1,
};

/// Meta Llama 3.1 8B.
pub const LLAMA_3_1_8B: Shape = Shape {
    layers: 32,
    hidden: 4_096,
    heads: 32,
    kv_heads: 8,
    inner: 14_336,
    vocabulary: 128_256,
    ..DENSE
};

/// Alibaba Qwen 2.5 7B.
pub const QWEN_2_5_7B: Shape = Shape {
    layers: 28,
    hidden: 3_584,
    heads: 28,
    kv_heads: 4,
    inner: 18_944,
    vocabulary: 152_064,
    ..DENSE
};

/// Meta Llama 3.1 70B, by its `config.json`.
pub const LLAMA_3_1_70B: Shape = Shape {
    layers: 80,
    hidden: 8_192,
    heads: 64,
    kv_heads: 8,
    inner: 28_672,
    vocabulary: 128_256,
    ..DENSE
};

/// Alibaba Qwen 2.5 72B, by its `config.json`.
pub const QWEN_2_5_72B: Shape = Shape {
    layers: 80,
    hidden: 8_192,
    heads: 64,
    kv_heads: 8,
    inner: 29_568,
    vocabulary: 152_064,
    ..DENSE
};

/// Mistral AI Mixtral 8x7B, by its `config.json`: 8 experts, 2 a token. "Mixtral of Experts" (arXiv 2401.04088)
/// states 47
/// billion parameters, 13 of them active.
pub const MIXTRAL_8X7B: Shape = Shape {
    layers: 32,
    hidden: 4_096,
    heads: 32,
    kv_heads: 8,
    inner: 14_336,
    vocabulary: 32_000,
    experts: 8,
    chosen: 2,
    ..DENSE
};

/// Alibaba Qwen3 30B-A3B, by its `config.json`: 128 experts of 768, 8 a token, heads of 128. Its model card states
/// 30.5
/// billion parameters, 3.3 of them active.
pub const QWEN3_30B_A3B: Shape = Shape {
    layers: 48,
    hidden: 2_048,
    heads: 32,
    kv_heads: 4,
    inner: 768,
    vocabulary: 151_936,
    head: 128,
    experts: 128,
    chosen: 8,
};

/// Models that are known by their shape only: their costs are scaled from the Llama fit, as if
/// one GPU held them.
pub const SHAPES: [(&str, Shape); 4] = [
    ("llama-3.1-70b", LLAMA_3_1_70B),
    ("qwen2.5-72b", QWEN_2_5_72B),
    ("mixtral-8x7b", MIXTRAL_8X7B),
    ("qwen3-30b-a3b", QWEN3_30B_A3B),
];

/// Models with fitted costs on every GPU that has fits.
pub const MODELS: [(&str, Shape); 2] =
    [("llama-3.1-8b", LLAMA_3_1_8B), ("qwen2.5-7b", QWEN_2_5_7B)];

/// One model on one GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Name, for people.
    pub name: String,
    /// What it is.
    pub shape: Shape,
    /// What its iterations cost.
    pub cost: Cost,
}

/// Fits, by GPU and model: prefill per iteration, token and squared token; decode per iteration,
/// request and cached token; milliseconds.
const FITS: [(&str, &str, [f64; 3], [f64; 3]); 6] = [
    (
        "h200",
        "llama-3.1-8b",
        [1.304_02, 0.019_854_5, 4.051_99e-7],
        [5.018_49, 0.011_576_9, 2.994_13e-5],
    ),
    (
        "h200",
        "qwen2.5-7b",
        [1.195_63, 0.018_712_9, 3.138_46e-7],
        [4.652_75, 0.008_894_93, 1.336_08e-5],
    ),
    (
        "h100",
        "llama-3.1-8b",
        [2.510_78, 0.019_167, 4.150_43e-7],
        [6.481, 0.010_298_1, 4.203_03e-5],
    ),
    (
        "h100",
        "qwen2.5-7b",
        [2.427_98, 0.018_234_7, 3.666_23e-7],
        [5.997_04, 0.008_144_28, 1.868_62e-5],
    ),
    (
        "a100",
        "llama-3.1-8b",
        [5.424_3, 0.054_273, 1.527_44e-6],
        [10.990_1, 0.030_964_6, 8.287_24e-5],
    ),
    (
        "a100",
        "qwen2.5-7b",
        [5.211_92, 0.051_809_3, 1.061_93e-6],
        [10.442_7, 0.028_71, 3.921_92e-5],
    ),
];

impl Shape {
    /// Size of a head.
    #[must_use]
    pub fn head(&self) -> u64 {
        match self.head {
            0 => u64::from(self.hidden) / u64::from(self.heads.max(1)),
            head => u64::from(head),
        }
    }

    /// Bytes of KV cache per token: keys and values of every layer, two bytes each.
    #[must_use]
    pub fn kv_bytes_per_token(&self) -> u64 {
        2 * 2 * u64::from(self.layers) * u64::from(self.kv_heads) * self.head()
    }

    /// Parameters of its attention, of all experts of its feed-forward parts, and of its output.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        self.with_experts(f64::from(self.experts)) as u64
    }

    /// Parameters that a token passes.
    #[must_use]
    pub fn active(&self) -> u64 {
        self.with_experts(f64::from(self.chosen)) as u64
    }

    /// Parameters of the model if each layer had so many experts. Exact below 2^53.
    fn with_experts(&self, experts: f64) -> f64 {
        let [layers, hidden, heads, kv_heads, inner, vocabulary] = [
            self.layers,
            self.hidden,
            self.heads,
            self.kv_heads,
            self.inner,
            self.vocabulary,
        ]
        .map(f64::from);
        let attention = 2.0 * hidden * (heads + kv_heads) * self.head() as f64;
        let router = if self.experts > 1 {
            hidden * f64::from(self.experts)
        } else {
            0.0
        };
        layers * (attention + router + experts * 3.0 * hidden * inner) + hidden * vocabulary
    }

    /// Which part of its weights a pass reads.
    fn mixture(&self) -> Mixture {
        let shared = self.with_experts(0.0) / self.with_experts(f64::from(self.experts));
        Mixture {
            share: 1.0 - shared,
            experts: f64::from(self.experts),
            chosen: f64::from(self.chosen),
        }
    }
}

/// The fit of this model on `gpu`, or the one that stands for it, with the model's shape.
fn fit(gpu: &Gpu, name: &str) -> Option<(CostModel, Shape)> {
    if let Some(from) = gpu.scaled_from() {
        let (known, shape) = fit(&from, name)?;
        return Some((gpu.scale(&from, known), shape));
    }
    let (_, model, prefill_ms, decode_ms) = FITS
        .into_iter()
        .find(|fit| fit.0 == gpu.name && fit.1 == name)?;
    let (_, shape) = MODELS.into_iter().find(|known| known.0 == model)?;
    let fit = CostModel {
        name: model,
        prefill_ms,
        decode_ms,
    };
    Some((fit, shape))
}

impl Model {
    /// A model of [`MODELS`] or [`SHAPES`] on `gpu`; `None` if it is neither.
    #[must_use]
    pub fn named(gpu: &Gpu, name: &str) -> Option<Self> {
        if let Some((name, shape)) = SHAPES.into_iter().find(|known| known.0 == name) {
            return Self::custom(gpu, name, shape);
        }
        let (fit, shape) = fit(gpu, name)?;
        Some(Self {
            name: name.to_owned(),
            shape,
            cost: Cost::Fit(fit),
        })
    }

    /// A model of any shape on `gpu`, scaled from the Llama fit of that GPU: what reads weights by the parameters
    /// that a
    /// pass reads, what multiplies by those that a token passes.
    #[must_use]
    pub fn custom(gpu: &Gpu, name: &str, shape: Shape) -> Option<Self> {
        let (known, known_shape) = fit(gpu, "llama-3.1-8b")?;
        let parameters = known_shape.parameters() as f64;
        let weights = shape.parameters() as f64 / parameters;
        let active = shape.active() as f64 / parameters;
        let kv = shape.kv_bytes_per_token() as f64 / known_shape.kv_bytes_per_token() as f64;
        let area =
            |shape: &Shape| f64::from(shape.layers) * f64::from(shape.heads) * shape.head() as f64;
        let attention = area(&shape) / area(&known_shape);
        let [p0, p1, p2] = known.prefill_ms;
        let [d0, d1, d2] = known.decode_ms;
        let fit = CostModel {
            name: "custom",
            prefill_ms: [p0 * weights, p1 * active, p2 * attention],
            decode_ms: [d0 * weights, d1 * active, d2 * kv],
        };
        let cost = if shape.experts > 1 {
            Cost::Experts(fit, shape.mixture())
        } else {
            Cost::Fit(fit)
        };
        Some(Self {
            name: name.to_owned(),
            shape,
            cost,
        })
    }
}

#[cfg(test)]
mod tests;
