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
//! for a decode, multiplications for a prefill.

use crate::calibration::Cost;
use crate::engine::CostModel;

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
}

/// NVIDIA H200 SXM.
pub const H200: Gpu = Gpu {
    name: "h200",
    memory_bytes: 151_397_597_184,
    memory_bytes_per_s: 4.8e12,
    pcie_bytes_per_s: 64e9,
};

/// NVIDIA H100 SXM, 80 GB.
pub const H100: Gpu = Gpu {
    name: "h100",
    memory_bytes: 85_899_345_920,
    memory_bytes_per_s: 3.35e12,
    pcie_bytes_per_s: 64e9,
};

/// NVIDIA A100 SXM, 80 GB.
pub const A100: Gpu = Gpu {
    name: "a100",
    memory_bytes: 85_899_345_920,
    memory_bytes_per_s: 2.039e12,
    pcie_bytes_per_s: 32e9,
};

/// Every GPU.
pub const GPUS: [Gpu; 3] = [H100, H200, A100];

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
}

/// Meta Llama 3.1 8B.
pub const LLAMA_3_1_8B: Shape = Shape {
    layers: 32,
    hidden: 4_096,
    heads: 32,
    kv_heads: 8,
    inner: 14_336,
    vocabulary: 128_256,
};

/// Alibaba Qwen 2.5 7B.
pub const QWEN_2_5_7B: Shape = Shape {
    layers: 28,
    hidden: 3_584,
    heads: 28,
    kv_heads: 4,
    inner: 18_944,
    vocabulary: 152_064,
};

/// Models with fitted costs on every GPU.
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
    /// Bytes of KV cache per token: keys and values of every layer, two bytes each.
    #[must_use]
    pub fn kv_bytes_per_token(&self) -> u64 {
        let head = u64::from(self.hidden) / u64::from(self.heads.max(1));
        2 * 2 * u64::from(self.layers) * u64::from(self.kv_heads) * head
    }

    /// Parameters that every token passes: attention, feed-forward part and output.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        let [layers, hidden, heads, kv_heads, inner, vocabulary] = [
            self.layers,
            self.hidden,
            self.heads,
            self.kv_heads,
            self.inner,
            self.vocabulary,
        ]
        .map(u64::from);
        let keys_and_values = 2 * hidden * kv_heads * (hidden / heads.max(1));
        layers * (2 * hidden * hidden + keys_and_values + 3 * hidden * inner) + hidden * vocabulary
    }
}

/// The fit of this model on `gpu`, with the model's shape.
fn fit(gpu: &Gpu, name: &str) -> Option<(CostModel, Shape)> {
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
    /// A model of [`MODELS`] on `gpu`; `None` if that pair has no fit.
    #[must_use]
    pub fn named(gpu: &Gpu, name: &str) -> Option<Self> {
        let (fit, shape) = fit(gpu, name)?;
        Some(Self {
            name: name.to_owned(),
            shape,
            cost: Cost::Fit(fit),
        })
    }

    /// A model of any shape on `gpu`, scaled from the Llama fit of that GPU.
    #[must_use]
    pub fn custom(gpu: &Gpu, name: &str, shape: Shape) -> Option<Self> {
        let (known, known_shape) = fit(gpu, "llama-3.1-8b")?;
        let weights = shape.parameters() as f64 / known_shape.parameters() as f64;
        let kv = shape.kv_bytes_per_token() as f64 / known_shape.kv_bytes_per_token() as f64;
        let area = |shape: &Shape| f64::from(shape.layers) * f64::from(shape.hidden);
        let attention = area(&shape) / area(&known_shape);
        let [p0, p1, p2] = known.prefill_ms;
        let [d0, d1, d2] = known.decode_ms;
        let fit = CostModel {
            name: "custom",
            prefill_ms: [p0 * weights, p1 * weights, p2 * attention],
            decode_ms: [d0 * weights, d1 * weights, d2 * kv],
        };
        Some(Self {
            name: name.to_owned(),
            shape,
            cost: Cost::Fit(fit),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gpu_has_every_model() {
        for gpu in GPUS {
            for (name, shape) in MODELS {
                let model = Model::named(&gpu, name).expect("a fit");
                assert_eq!(model.shape, shape);
            }
        }
        assert_eq!(Model::named(&H200, "gpt"), None);
    }

    #[test]
    fn shapes_give_the_published_sizes() {
        assert_eq!(LLAMA_3_1_8B.kv_bytes_per_token(), 131_072);
        assert_eq!(QWEN_2_5_7B.kv_bytes_per_token(), 57_344);
        let billions = |shape: Shape| shape.parameters() as f64 / 1e9;
        assert!((billions(LLAMA_3_1_8B) - 7.5).abs() < 0.1);
    }

    #[test]
    fn a_custom_model_of_a_known_shape_costs_about_what_the_known_one_does() {
        let fitted = Model::named(&H200, "qwen2.5-7b").expect("a fit").cost;
        let scaled = Model::custom(&H200, "mine", QWEN_2_5_7B)
            .expect("a fit")
            .cost;
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 0.15;
        assert!(near(fitted.decode_ms(1, 0), scaled.decode_ms(1, 0)));
        let prompt = |cost: &Cost| cost.prefill_ms(2_048, 0.0, 0, 0);
        assert!(near(prompt(&fitted), prompt(&scaled)));
    }
}
