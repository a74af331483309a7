use super::*;
use crate::stand_in::StandIn;
use hyper::StatusCode;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

const ONE: &str = "key-of-one-0123456789";
const TWO: &str = "key-of-two-0123456789";

/// A server before a stand-in engine.
struct Scene {
    engine: StandIn,
    address: SocketAddr,
    server: JoinHandle<()>,
    keys: String,
}

impl Scene {
    async fn new(name: &str, limits: &str) -> Self {
        let keys = format!(
            "[[keys]]\nkey = \"{ONE}\"\nowner = \"one\"\n{limits}\n[[keys]]\nkey = \"{TWO}\"\nowner = \"two\"\n"
        );
        let engine = StandIn::start(name);
        let (address, server) = Self::serve(&engine, &keys).await;
        Self {
            engine,
            address,
            server,
            keys,
        }
    }

    async fn serve(engine: &StandIn, keys: &str) -> (SocketAddr, JoinHandle<()>) {
        let options = Options {
            engine: engine.socket(),
            listen: "127.0.0.1:0".parse().unwrap(),
            keys: Keys::parse(keys).unwrap(),
            state: engine.folder.join("state"),
        };
        let (sender, ready) = tokio::sync::oneshot::channel();
        let server = tokio::spawn(async move {
            let told = |address| sender.send(address).unwrap();
            serve(options, std::future::pending(), told).await.unwrap();
        });
        (ready.await.unwrap(), server)
    }

    /// One request on a connection of its own: status, `Retry-After`, body.
    async fn ask(
        &self,
        key: &str,
        call: &str,
        kind: &str,
        body: &str,
    ) -> (u16, Option<u64>, Value) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let head = format!(
            "{call} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n\
             Content-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let again = head
            .lines()
            .find_map(|line| line.strip_prefix("retry-after: ")?.parse().ok());
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (
            status,
            again,
            serde_json::from_str(body).unwrap_or(Value::Null),
        )
    }

    async fn json(&self, key: &str, call: &str, body: &Value) -> (u16, Option<u64>, Value) {
        self.ask(key, call, "application/json", &body.to_string())
            .await
    }

    async fn upload(&self, key: &str, content: &str) -> (u16, Option<u64>, Value) {
        let part = |name: &str, more: &str, content: &str| {
            format!(
                "--b\r\nContent-Disposition: form-data; name=\"{name}\"{more}\r\n\r\n{content}\r\n"
            )
        };
        let body = part("purpose", "", "fine-tune")
            + &part("file", "; filename=\"train.jsonl\"", content)
            + "--b--\r\n";
        self.ask(
            key,
            "POST /v1/files",
            "multipart/form-data; boundary=b",
            &body,
        )
        .await
    }

    /// Uploads samples and asks for a job.
    async fn job(&self, key: &str, more: Value) -> (u16, Option<u64>, Value) {
        let line = json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bcd"}]});
        let (status, _, file) = self.upload(key, &format!("{line}\n{line}\n{line}\n")).await;
        assert_eq!(status, 200, "{file}");
        let mut body = json!({"model": "base", "training_file": file["id"], "hyperparameters": {"batch_size": 2}});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        self.json(key, "POST /v1/fine_tuning/jobs", &body).await
    }

    /// The job, once it is in this state.
    async fn until(&self, key: &str, id: &Value, status: &str) -> Value {
        let call = format!("GET /v1/fine_tuning/jobs/{}", id.as_str().unwrap());
        let mut last = Value::Null;
        let looked = async {
            loop {
                let (_, _, job) = self.json(key, &call, &json!({})).await;
                if job["status"] == status {
                    return job;
                }
                last = job;
                tokio::task::yield_now().await;
            }
        };
        let found = tokio::time::timeout(Duration::from_secs(20), looked).await;
        found.unwrap_or_else(|_| panic!("it is never {status}: {last}"))
    }
}

/// P-TUNE-4: a job trains, its events and checkpoints tell of it, and another owner sees nothing of it.
#[tokio::test]
async fn a_job_trains_and_only_its_owner_sees_it() {
    let scene = Scene::new("jobs", "").await;
    let (status, _, job) = scene
        .job(ONE, json!({"suffix": "mine", "metadata": {"a": "b"}}))
        .await;
    assert_eq!(
        (status, &job["object"]),
        (200, &json!("fine_tuning.job")),
        "{job}"
    );
    let done = scene.until(ONE, &job["id"], "succeeded").await;
    assert_eq!(
        (&done["step"], &done["trained_tokens"]),
        (&json!(6), &json!(27)),
        "{done}"
    );
    let name = done["fine_tuned_model"].as_str().unwrap();
    assert!(name.starts_with("ft:base:one:mine:"), "{name}");
    assert!(
        scene
            .engine
            .folder
            .join("state/jobs")
            .join(job["id"].as_str().unwrap())
            .join("adapter")
            .exists()
    );
    let at = format!("/v1/fine_tuning/jobs/{}", job["id"].as_str().unwrap());
    let (_, _, events) = scene
        .json(ONE, &format!("GET {at}/events?limit=3"), &json!({}))
        .await;
    assert_eq!(
        (
            events["data"].as_array().unwrap().len(),
            &events["has_more"]
        ),
        (3, &json!(true)),
        "{events}"
    );
    let (_, _, saved) = scene
        .json(ONE, &format!("GET {at}/checkpoints"), &json!({}))
        .await;
    assert_eq!(saved["data"][0]["step_number"], 6, "{saved}");
    assert!(
        saved["data"][0]["metrics"]["train_loss"].is_f64(),
        "{saved}"
    );
    for call in [
        format!("GET {at}"),
        format!("GET {at}/events"),
        format!("POST {at}/cancel"),
        format!("GET /v1/files/{}", job["training_file"].as_str().unwrap()),
        format!(
            "DELETE /v1/files/{}",
            job["training_file"].as_str().unwrap()
        ),
        format!("DELETE /v1/models/{name}"),
    ] {
        assert_eq!(scene.json(TWO, &call, &json!({})).await.0, 404, "{call}");
        assert_eq!(
            scene
                .json("key-of-nobody-012345", &call, &json!({}))
                .await
                .0,
            401,
            "{call}"
        );
    }
    let (_, _, list) = scene
        .json(TWO, "GET /v1/fine_tuning/jobs", &json!({}))
        .await;
    assert_eq!(list["data"], json!([]));
    assert_eq!(
        scene
            .json(ONE, &format!("POST {at}/cancel"), &json!({}))
            .await
            .0,
        409
    );
    assert_eq!(
        scene
            .json(
                ONE,
                &format!("DELETE /v1/models/{}", name.replace(':', "%3A")),
                &json!({})
            )
            .await
            .0,
        200
    );
    assert_eq!(scene.engine.count("close"), 1);
}

/// P-TUNE-4: what makes no sense is refused with the parameter, and an unknown call with the known ones.
#[tokio::test]
async fn what_makes_no_sense_is_refused_with_its_parameter() {
    let scene = Scene::new("refusals", "").await;
    let (status, _, bad) = scene
        .upload(ONE, "{\"text\": \"a\"}\n{\"text\": 5}\n")
        .await;
    assert_eq!(status, 400);
    assert_eq!(
        bad["error"]["message"],
        "train.jsonl:2: text: expected a string"
    );
    let (_, _, other) = scene.upload(TWO, "{\"text\": \"abc\"}\n").await;
    let cases = [
        (
            json!({"model": "gpt-9"}),
            "model",
            "there is no base model gpt-9; this server trains base",
        ),
        (
            json!({"training_file": other["id"]}),
            "training_file",
            "there is no file",
        ),
        (
            json!({"validation_file": 5}),
            "validation_file",
            "expected a string",
        ),
        (
            json!({"method": {"type": "dpo"}}),
            "method",
            "no method dpo",
        ),
        (
            json!({"hyperparameters": {"n_epochs": 0}}),
            "n_epochs",
            "expected \"auto\" or a number above 0",
        ),
        (
            json!({"hyperparameters": {"batch_size": 1.5}}),
            "batch_size",
            "expected a whole number",
        ),
        (json!({"suffix": "a/b"}), "suffix", "expected up to 64"),
        (json!({"lora": "r=64"}), "lora", "--max-lora-rank 64"),
        (
            json!({"integrations": [{"type": "wandb"}]}),
            "integrations",
            "no integrations",
        ),
    ];
    for (more, param, told) in cases {
        let (status, _, refused) = scene.job(ONE, more.clone()).await;
        assert_eq!(
            (status, refused["error"]["param"].as_str()),
            (400, Some(param)),
            "{more}: {refused}"
        );
        assert!(
            refused["error"]["message"].as_str().unwrap().contains(told),
            "{more}: {refused}"
        );
    }
    let (status, _, unknown) = scene
        .json(ONE, "POST /v1/fine_tuning/dreams", &json!({}))
        .await;
    assert_eq!(status, 404);
    assert!(
        unknown["error"]["message"]
            .as_str()
            .unwrap()
            .contains("POST /v1/fine_tuning/jobs"),
        "{unknown}"
    );
    assert_eq!(
        scene
            .ask(ONE, "POST /v1/fine_tuning/jobs", "application/json", "{")
            .await
            .0,
        400
    );
    let large = "x".repeat((1 << 20) + 1);
    assert_eq!(
        scene
            .ask(ONE, "POST /v1/fine_tuning/jobs", "application/json", &large)
            .await
            .0,
        413
    );
    let (_, _, list) = scene
        .json(ONE, "GET /v1/fine_tuning/jobs", &json!({}))
        .await;
    assert_eq!(list["data"], json!([]), "a refused job is kept");
}

/// P-TUNE-3: a quota that is used up stops training, refuses new jobs with 429 and the time, and concerns nobody else.
#[tokio::test]
async fn a_quota_that_is_used_up_says_until_when() {
    let scene = Scene::new("quota", "tokens_per_day = 10").await;
    let (_, _, job) = scene.job(ONE, json!({})).await;
    let told = async {
        loop {
            let at = format!(
                "GET /v1/fine_tuning/jobs/{}/events",
                job["id"].as_str().unwrap()
            );
            if scene
                .json(ONE, &at, &json!({}))
                .await
                .2
                .to_string()
                .contains("tokens a day are used up")
            {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), told)
        .await
        .expect("the job waits for tomorrow");
    let waits = scene.until(ONE, &job["id"], "queued").await;
    assert!(waits["trained_tokens"].as_u64().unwrap() < 27, "{waits}");
    let (status, again, refused) = scene.job(ONE, json!({})).await;
    assert_eq!(
        (status, &refused["error"]["code"]),
        (429, &json!("quota_exceeded"))
    );
    assert!((1..=86_400).contains(&again.unwrap()));
    let (_, _, other) = scene.job(TWO, json!({})).await;
    scene.until(TWO, &other["id"], "succeeded").await;
}

/// P-TUNE-4: an engine that is gone is 503 with the time to come back, jobs wait for it, and a server that ends in
/// mid-job goes on with the job when it is started again.
#[tokio::test]
async fn jobs_outlive_the_engine_and_the_server() {
    let mut scene = Scene::new("outlive", "").await;
    let (_, _, whole) = scene
        .job(ONE, json!({"hyperparameters": {"n_epochs": 9}}))
        .await;
    scene.until(ONE, &whole["id"], "succeeded").await;
    // Every connection ends after this many answers, which is in mid-job.
    scene.engine.inside.lock().unwrap().answers = Some(20);
    let (_, _, job) = scene
        .job(ONE, json!({"hyperparameters": {"n_epochs": 9}}))
        .await;
    scene.until(ONE, &job["id"], "queued").await;
    let (status, again, refused) = scene.job(ONE, json!({})).await;
    assert_eq!(
        (status, again, &refused["error"]["code"]),
        (503, Some(answer::ENGINE_AGAIN), &json!("engine_gone"))
    );
    scene.server.abort();
    let _ = (&mut scene.server).await;
    scene.engine.inside.lock().unwrap().answers = None;
    (scene.address, scene.server) = Scene::serve(&scene.engine, &scene.keys).await;
    let done = scene.until(ONE, &job["id"], "succeeded").await;
    let jobs = scene.engine.folder.join("state/jobs");
    let bytes = |job: &Value| {
        std::fs::read(
            jobs.join(job["id"].as_str().unwrap())
                .join("adapter/adapter.json"),
        )
        .unwrap()
    };
    assert_eq!(bytes(&done), bytes(&whole));
}

/// P-TUNE-4: a job can be paused, resumed and cancelled at any time, and leaves the engine empty when it was cancelled.
#[tokio::test]
async fn a_job_is_paused_resumed_and_cancelled() {
    let scene = Scene::new("paused-job", "").await;
    let (_, _, job) = scene
        .job(ONE, json!({"hyperparameters": {"n_epochs": 1000}}))
        .await;
    let at = format!("POST /v1/fine_tuning/jobs/{}", job["id"].as_str().unwrap());
    scene.until(ONE, &job["id"], "running").await;
    assert_eq!(
        scene.json(ONE, &format!("{at}/pause"), &json!({})).await.2["status"],
        "pausing"
    );
    let rests = scene.until(ONE, &job["id"], "paused").await;
    assert_eq!(
        scene.engine.count("open"),
        scene.engine.count("close"),
        "{rests}"
    );
    scene.json(ONE, &format!("{at}/resume"), &json!({})).await;
    scene.until(ONE, &job["id"], "running").await;
    assert_eq!(
        scene.json(ONE, &format!("{at}/cancel"), &json!({})).await.2["status"],
        "cancelled"
    );
    let empty = async {
        while scene.engine.count("open") != scene.engine.count("close") {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), empty)
        .await
        .expect("the adapter is closed");
    assert_eq!(
        scene.json(ONE, &format!("{at}/resume"), &json!({})).await.0,
        StatusCode::CONFLICT.as_u16()
    );
}
