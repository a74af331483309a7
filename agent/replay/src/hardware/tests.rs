use super::*;

#[test]
fn every_gpu_has_every_model() {
    for gpu in all() {
        for (name, shape) in MODELS.into_iter().chain(SHAPES) {
            let model = Model::named(&gpu, name).expect("a fit");
            assert_eq!(model.shape, shape);
        }
    }
    assert_eq!(Model::named(&H200, "gpt"), None);
}

#[test]
fn a_gpu_scaled_by_its_data_sheet_is_near_its_own_fit() {
    for gpu in GPUS {
        let others: Vec<Gpu> = GPUS
            .into_iter()
            .filter(|other| other.name != gpu.name)
            .collect();
        let from = gpu.nearest(&others).expect("two others");
        for (model, _) in MODELS {
            let (own, _) = fit(&gpu, model).expect("a fit");
            let (theirs, _) = fit(&from, model).expect("a fit");
            let scaled = gpu.scale(&from, theirs);
            // A prompt of a thousand tokens and a decode of a batch: what users wait for.
            let prompt = |cost: &CostModel| cost.prefill([(1_000, 0)]).as_secs_f64();
            let decode = |cost: &CostModel| cost.decode(16, 30_000).as_secs_f64();
            for (what, of) in [
                ("prefill", &prompt as &dyn Fn(&CostModel) -> f64),
                ("decode", &decode),
            ] {
                let ratio = of(&scaled) / of(&own);
                assert!(
                    (0.6..1.4).contains(&ratio),
                    "{what} of {model} on {} scaled from {}: {ratio}",
                    gpu.name,
                    from.name
                );
            }
        }
    }
}

#[test]
fn scaled_gpus_are_ordered_as_their_data_sheets() {
    let cost = |name: &str| {
        let gpu = all().find(|gpu| gpu.name == name).expect("a name");
        Model::named(&gpu, "llama-3.1-8b").expect("scaled").cost
    };
    let decode = |name: &str| cost(name).decode_ms(1, 0);
    let order = [
        "b200",
        "h200",
        "h100",
        "a100",
        "rtx-pro-6000",
        "l40s",
        "a10",
        "l4",
    ];
    for pair in order.windows(2) {
        assert!(decode(pair[0]) < decode(pair[1]), "{pair:?}");
    }
    let prompt = |name: &str| cost(name).prefill_ms(8_000, 0.0, 0, 0);
    assert!(prompt("l40s") < prompt("a10") && prompt("b200") < prompt("h200"));
}

#[test]
fn shapes_give_the_published_sizes() {
    let billions = |shape: Shape| shape.parameters() as f64 / 1e9;
    assert!((billions(LLAMA_3_1_70B) - 69.5).abs() < 0.5);
    assert!((billions(QWEN_2_5_72B) - 71.5).abs() < 0.5);
    assert_eq!(LLAMA_3_1_70B.kv_bytes_per_token(), 327_680);
    assert_eq!(LLAMA_3_1_8B.kv_bytes_per_token(), 131_072);
    assert_eq!(QWEN_2_5_7B.kv_bytes_per_token(), 57_344);
    let billions = |shape: Shape| shape.parameters() as f64 / 1e9;
    assert!((billions(LLAMA_3_1_8B) - 7.5).abs() < 0.1);
}

#[test]
fn mixtures_have_the_published_sizes() {
    // Totals and active parameters of the model cards; the cards count the input's embeddings, too.
    for (shape, total, active) in [(MIXTRAL_8X7B, 46.7, 12.9), (QWEN3_30B_A3B, 30.5, 3.3)] {
        let embeddings = f64::from(shape.hidden) * f64::from(shape.vocabulary) / 1e9;
        let found = shape.parameters() as f64 / 1e9 + embeddings;
        assert!((found - total).abs() < 0.1, "{found} of {total}");
        let found = shape.active() as f64 / 1e9 + embeddings;
        assert!((found - active).abs() < 0.1, "{found} of {active}");
    }
    // Keys and values, layers, heads, their size, two bytes.
    assert_eq!(QWEN3_30B_A3B.kv_bytes_per_token(), 2 * 48 * 4 * 128 * 2);
}

#[test]
fn one_token_reads_what_is_active_and_many_read_everything() {
    for shape in [MIXTRAL_8X7B, QWEN3_30B_A3B] {
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-6;
        let read = |tokens| shape.mixture().read(tokens) * shape.parameters() as f64;
        assert!(near(read(1.0), shape.active() as f64));
        assert!(near(read(4_096.0), shape.parameters() as f64));
        let model = Model::custom(&H200, "mixture", shape).expect("a fit");
        let decode = |batch| model.cost.decode_ms(batch, 0);
        for batch in 1..256 {
            assert!(decode(batch) < decode(batch + 1), "{batch}");
        }
        // A token multiplies as a model without experts of its active size does, and reads no more.
        let (dense, _) = fit(&H200, "llama-3.1-8b").expect("a fit");
        let of_llama = shape.active() as f64 / LLAMA_3_1_8B.parameters() as f64;
        let alone = dense.decode(1, 0).as_secs_f64() * 1e3 * of_llama;
        assert!(
            (decode(1) / alone - 1.0).abs() < 1e-3,
            "{} {alone}",
            decode(1)
        );
        // The more prompt tokens, the less do the weights of all experts matter.
        let prompt = |tokens| model.cost.prefill_ms(tokens, 0.0, 0, 0);
        assert!(prompt(1) < prompt(512) && prompt(512) < prompt(8_192));
        let per_token = prompt(16_384) - prompt(8_192);
        let expected = dense.prefill_ms[1] * of_llama * 8_192.0;
        assert!((per_token / expected - 1.0).abs() < 1e-3);
    }
    // Drawn, not computed: two of eight for each of four tokens.
    let mut rng = tidegate_text::rng::Rng::new(7);
    let mut seen = 0_u32;
    for _ in 0..20_000 {
        let mut hit = [false; 8];
        for _ in 0..4 {
            let first = ((rng.uniform() * 8.0) as usize).min(7);
            let second = (first + 1 + ((rng.uniform() * 7.0) as usize).min(6)) % 8;
            (hit[first], hit[second]) = (true, true);
        }
        seen += hit.iter().filter(|hit| **hit).count() as u32;
    }
    let drawn = MIXTRAL_8X7B.with_experts(f64::from(seen) / 20_000.0);
    let read = MIXTRAL_8X7B.mixture().read(4.0) * MIXTRAL_8X7B.parameters() as f64;
    assert!((read / drawn - 1.0).abs() < 0.01, "{read} {drawn}");
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
