use super::*;
use crate::data::{Learn, lines};
use crate::lora::Lora;
use crate::rate::{Schedule, Shape};
use crate::sample::{SampleError, encode};
use crate::stand_in::StandIn;
use std::path::Path;

/// Keeps the news, and wants an end after some of them.
#[derive(Debug, Default)]
struct Notes {
    news: Vec<News>,
    end: Option<(usize, Wants)>,
}

impl Watch for Notes {
    fn wants(&self) -> Wants {
        match self.end {
            Some((after, wants)) if self.news.len() >= after => wants,
            _ => Wants::Go,
        }
    }

    fn saw(&mut self, news: News) {
        self.news.push(news);
    }
}

fn plan(name: &str) -> Plan {
    Plan {
        name: name.to_owned(),
        lora: Lora::parse("r=4").unwrap(),
        weight: 1.0,
        seed: 3,
        epochs: 2,
        batch: 2,
        schedule: Schedule {
            peak: 0.5,
            warmup: 2,
            shape: Shape::Linear,
        },
        weight_decay: 0.0,
        clip: 1.0,
        publish: Publish::Every(2),
        save_every: 2,
        validate_every: 3,
    }
}

struct Scene {
    stand_in: StandIn,
    material: Material,
}

impl Scene {
    async fn new(name: &str) -> Self {
        let stand_in = StandIn::start(name);
        let (engine, hello) = Engine::connect(&stand_in.socket()).await.unwrap();
        let file = (0..7)
            .map(|n| format!("{{\"text\": \"sample {n}{n}\"}}\n"))
            .collect::<String>();
        let read = lines("f", file.as_bytes(), Learn::All).unwrap();
        let samples = encode(&engine, &hello, "f", &read, Learn::All)
            .await
            .unwrap();
        let material = Material {
            validation: samples[..2].to_vec(),
            samples,
        };
        Self { stand_in, material }
    }

    fn place(&self, name: &str) -> Place {
        Place::beside(&self.stand_in.folder.join(name))
    }

    async fn train(&self, plan: &Plan, place: &Place, notes: &mut Notes) -> Result<End, RunError> {
        let (engine, hello) = Engine::connect(&self.stand_in.socket()).await?;
        train(&engine, &hello, plan, &self.material, place, notes).await
    }

    fn answers(&self, left: Option<u32>) {
        self.stand_in.inside.lock().unwrap().answers = left;
    }
}

fn adapter(path: &Path) -> String {
    std::fs::read_to_string(path.join("adapter.json")).unwrap()
}

/// P-TUNE-2: a run whose engine or process ends after any command goes on, and the adapter has the bytes of a run that
/// nothing disturbed.
#[tokio::test]
async fn a_run_that_is_killed_anywhere_ends_in_the_same_bytes() {
    let scene = Scene::new("killed").await;
    let whole = scene.place("whole");
    let mut notes = Notes::default();
    assert_eq!(
        scene
            .train(&plan("whole"), &whole, &mut notes)
            .await
            .unwrap(),
        End::Finished { step: 8 }
    );
    let (wanted, last) = (adapter(&whole.out), notes.news.last().copied());
    assert_eq!(last, Some(News::Published { step: 8 }));
    let mut ends = 0;
    for answers in 0.. {
        let name = format!("cut{answers}");
        let (plan, place) = (plan(&name), scene.place(&name));
        // Every connection ends after this many answers, until one is enough.
        let mut left = answers;
        for attempt in 0.. {
            assert!(attempt < 50, "the run makes no progress");
            scene.answers(Some(left));
            match scene.train(&plan, &place, &mut Notes::default()).await {
                Ok(_) => break,
                Err(RunError::Engine(error)) if error.gone() => ends += 1,
                Err(error) => panic!("after {answers} answers: {error}"),
            }
            // A step and a checkpoint have to fit once, or no run ever ends.
            left = answers + 12;
        }
        scene.answers(None);
        assert_eq!(adapter(&place.out), wanted, "after {answers} answers");
        assert!(!place.folder.exists(), "the folder of the run is left");
        let (engine, _) = Engine::connect(&scene.stand_in.socket()).await.unwrap();
        let _: serde_json::Value = engine
            .call("close", json!({"adapter": name}))
            .await
            .unwrap();
        if answers > 40 {
            break;
        }
    }
    assert!(ends > 41, "{ends} connections ended");
}

/// P-TUNE-2: the same of a run that was paused, and the best step by the validation file is kept.
#[tokio::test]
async fn a_paused_run_goes_on_and_the_best_step_is_kept() {
    let mut scene = Scene::new("paused").await;
    // What it is judged by becomes less likely with what it learns.
    for sample in &mut scene.material.validation {
        sample.tokens.iter_mut().for_each(|token| *token = 15);
    }
    let whole = scene.place("whole");
    let plan = |name: &str| Plan {
        epochs: 4,
        ..plan(name)
    };
    let end = scene
        .train(&plan("whole"), &whole, &mut Notes::default())
        .await
        .unwrap();
    assert_eq!(end, End::Finished { step: 3 });
    let parts = scene.place("parts");
    let mut notes = Notes {
        end: Some((4, Wants::Pause)),
        ..Notes::default()
    };
    assert_eq!(
        scene
            .train(&plan("parts"), &parts, &mut notes)
            .await
            .unwrap(),
        End::Paused
    );
    let mut notes = Notes::default();
    assert_eq!(
        scene
            .train(&plan("parts"), &parts, &mut notes)
            .await
            .unwrap(),
        end
    );
    assert!(
        matches!(
            notes.news[0],
            News::Begun {
                done: 1..,
                steps: 16
            }
        ),
        "{:?}",
        notes.news[0]
    );
    assert_eq!(adapter(&parts.out), adapter(&whole.out));
    let (mut notes, again) = (
        Notes {
            end: Some((2, Wants::Cancel)),
            ..Notes::default()
        },
        scene.place("again"),
    );
    let opened = scene.stand_in.count("open");
    let (engine, _) = Engine::connect(&scene.stand_in.socket()).await.unwrap();
    let _: Value = engine
        .call("close", json!({"adapter": "parts"}))
        .await
        .unwrap();
    assert_eq!(
        scene
            .train(&plan("again"), &again, &mut notes)
            .await
            .unwrap(),
        End::Cancelled
    );
    assert_eq!(scene.stand_in.count("open"), opened + 1);
}

/// P-TUNE-1: what cannot be run is refused in one line, and nothing of another's is touched.
#[tokio::test]
async fn what_cannot_be_run_is_refused() {
    let scene = Scene::new("refused").await;
    let place = scene.place("out");
    let run = async |plan: Plan, place: &Place| {
        let end = scene.train(&plan, place, &mut Notes::default()).await;
        end.map(|_| String::new())
            .unwrap_or_else(|error| error.to_string())
    };
    let large = Plan {
        lora: Lora::parse("r=64").unwrap(),
        ..plan("large")
    };
    assert!(run(large, &place).await.contains("--max-lora-rank 64"));
    let (engine, _) = Engine::connect(&scene.stand_in.socket()).await.unwrap();
    let open = Lora::parse("").unwrap().open("taken", 0, 1.0);
    let _: Value = engine.call("open", open).await.unwrap();
    assert!(
        run(plan("taken"), &place)
            .await
            .starts_with("the engine already has an adapter taken")
    );
    assert_eq!(scene.stand_in.count("close"), 0);
    assert!(!place.folder.exists());
    let hot = Schedule {
        peak: f64::MAX,
        warmup: 0,
        shape: Shape::Constant,
    };
    let told = run(
        Plan {
            schedule: hot,
            ..plan("hot")
        },
        &place,
    )
    .await;
    assert!(told.contains("use a lower learning rate"), "{told}");
    let told = run(
        Plan {
            batch: 3,
            ..plan("hot")
        },
        &place,
    )
    .await;
    assert!(
        told.contains("an unfinished run with another set of options"),
        "{told}"
    );
    let held = place.hold().unwrap();
    assert!(
        run(plan("hot"), &place)
            .await
            .contains("another process runs this training")
    );
    drop(held);
    std::fs::create_dir(scene.place("there").out).unwrap();
    assert!(
        run(plan("there"), &scene.place("there"))
            .await
            .contains("exists")
    );
    assert!(!scene.place("there").folder.exists());
}

/// P-TUNE-1: a line that only the engine can judge is refused as one that this program judges.
#[tokio::test]
async fn a_line_that_the_engine_refuses_is_named() {
    let scene = Scene::new("lines").await;
    let (engine, hello) = Engine::connect(&scene.stand_in.socket()).await.unwrap();
    let long = "x".repeat(65);
    let cases = [
        (
            json!({"text": long}),
            "f:1: text: 65 tokens, and the engine takes 64; shorten the sample",
        ),
        (json!({"text": "x"}), "f:1: text: no token is learnt"),
        (
            json!({"messages": [{"role": "tool", "content": "x"}]}),
            "f:1: messages: it is bad_request",
        ),
    ];
    for (line, told) in cases {
        let read = lines("f", line.to_string().as_bytes(), Learn::All).unwrap();
        let error = encode(&engine, &hello, "f", &read, Learn::All)
            .await
            .unwrap_err();
        assert!(
            matches!(error, SampleError::Data(_)) && error.to_string().starts_with(told),
            "{error}"
        );
    }
}
