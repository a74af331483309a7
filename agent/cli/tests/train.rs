//! `tidegate finetune` as a user meets it who asks for what makes no sense. What it trains is tested by
//! `scripts/finetune`, which has PyTorch.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A user's folder with a model that looks whole, and data.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("tidegate-train-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("model")).expect("the temporary directory is writable");
        let folder = Self(folder);
        folder.write("model/config.json", r#"{"model_type": "llama"}"#);
        folder.write("model/model.safetensors", "");
        folder.write("model/tokenizer.json", "{}");
        folder.write("data.jsonl", "{\"text\": \"a lamp on the quay\"}\n");
        folder
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).expect("the folder is writable");
    }

    /// Asks for a training here, with other arguments too; the package is found, or not.
    fn ask(&self, more: &[&str], package: bool) -> Output {
        let engines = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interposer/engines");
        let engines = if package { engines } else { PathBuf::new() };
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command
            .args(["finetune", "--model", "model", "--out", "adapter"])
            .args(more)
            .current_dir(&self.0)
            .env("PYTHONPATH", engines)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("TIDEGATE_RUN_DIR", self.0.join("no-agent"));
        command.output().expect("tidegate starts")
    }

    /// The one line of a refusal that is wrong usage.
    #[track_caller]
    fn refused(&self, more: &[&str], package: bool) -> String {
        let output = self.ask(more, package);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{more:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(!self.0.join("adapter").exists());
        said
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // It is in the temporary directory; what is left there is no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// P-TRAINER-9: what makes no sense costs one line, before an agent is asked.
#[test]
fn what_makes_no_sense_costs_one_line_and_exit_code_2() {
    let folder = Folder::new();
    folder.write("bad.jsonl", "{\"text\": \"a\"}\n{\"txt\": 1}\n");
    let said = folder.refused(&["--data", "bad.jsonl"], true);
    assert!(
        said.contains("bad.jsonl:2: has to have either 'text' or 'messages'"),
        "{said}"
    );
    let said = folder.refused(&["--data", "data.jsonl", "--lora", "modules=q_prj"], true);
    assert!(
        said.contains("no module is named 'q_prj'; near it: q_proj"),
        "{said}"
    );
    let said = folder.refused(&["--data", "data.jsonl", "--rate=-1"], true);
    assert!(
        said.contains("--rate: '-1' is not a learning rate"),
        "{said}"
    );
    // Judged by the package, and not a package that breaks.
    assert!(said.starts_with("finetune: "), "{said}");
    let said = folder.refused(&["--data", "data.jsonl", "--python", "/no/python"], true);
    assert!(said.contains("--python: cannot start /no/python"), "{said}");
    let said = folder.refused(&["--data", "dta.jsonl"], false);
    assert!(said.contains("--data: there is no dta.jsonl"), "{said}");
    let said = folder.refused(&["--data", "data.jsonl"], false);
    assert!(
        said.contains("pip install /usr/share/tidegate/engines/*.whl"),
        "{said}"
    );
}
