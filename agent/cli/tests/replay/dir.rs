//! A directory to run `tidegate replay` in.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory of one test's own, with a trace, lengths and a table of scenarios in it.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new() -> Self {
        static ONCE: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "tidegate-replay-{}-{}",
            std::process::id(),
            ONCE.fetch_add(1, Ordering::Relaxed)
        );
        let dir = Self(std::env::temp_dir().join(name));
        std::fs::create_dir_all(&dir.0).expect("a temporary directory");
        let rows: String = (0..120)
            .map(|i| {
                format!(
                    "{}.{:03},{},{}\n",
                    i / 3,
                    137 * i % 1000 / 3 + 333 * (i % 3),
                    200 + 17 * i % 900,
                    5 + i % 40
                )
            })
            .collect();
        dir.write(
            "busy.csv",
            &format!("arrival_s,input_tokens,output_tokens\n{rows}"),
        );
        dir.write("docs.csv", "input_tokens,output_tokens\n900,60\n2000,30\n");
        dir.write(
            "table.csv",
            "id,gpu,online_trace,thin_keep_1_in,online_model,offline_model,offline_lengths,offline_chunk_tokens,kv_pool_gib\n\
             S1,h200,busy,1,llama-3.1-8b,qwen2.5-7b,docs,2048,8\n\
             S2,a100,busy,2,qwen2.5-7b,llama-3.1-8b,docs,512,4\n",
        );
        dir
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).expect("the directory is ours");
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// What it prints with these arguments, into `out`, by so many threads; it fits a terminal.
    #[allow(dead_code, reason = "not every test prints a table")]
    pub fn printed(&self, args: &[&str], out: &str, threads: &str) -> String {
        let told =
            self.answer(&[args, &["--traces", ".", "--out", out, "--threads", threads]].concat());
        assert!(
            told.lines().all(|line| line.chars().count() <= 80),
            "{told}"
        );
        told
    }

    /// Runs `tidegate replay` here.
    pub fn replay(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .arg("replay")
            .args(args)
            .current_dir(&self.0)
            .output()
            .expect("the program starts")
    }

    pub fn answer(&self, args: &[&str]) -> String {
        let output = self.replay(args);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {told}");
        assert!(
            told.is_empty(),
            "nothing is drawn where there is no terminal: {told}"
        );
        String::from_utf8(output.stdout).expect("text")
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
