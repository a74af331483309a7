//! `tidegate-driver-patch`: apply, undo, verify.
#![forbid(unsafe_code)]

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use tidegate_driver_patch::branches::{self, Branch};
use tidegate_driver_patch::tree::Tree;
use tidegate_driver_patch::{Variant, module};

/// The optional one-word driver patch for nodes with several GPUs. driver-patch/README.md says what it does.
#[derive(Debug, Parser)]
#[command(name = "tidegate-driver-patch", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str =
    "Exit codes: 0 done, or nothing to do; 1 refused, nothing was changed; 2 wrong usage.";

#[derive(Debug, Args)]
struct Source {
    /// Source tree of NVIDIA's open kernel modules.
    #[arg(long, value_name = "DIR")]
    tree: PathBuf,
    /// Accept a version of a known branch that the makers of this patch did not read.
    #[arg(long)]
    untested_version: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Add one flag to one word of a source tree.
    Apply {
        #[command(flatten)]
        source: Source,
        /// B: GPU_LOCK_DEVICE_ONLY. A: ROUTE_TO_PHYSICAL.
        #[arg(long, default_value = "B", value_name = "A|B")]
        variant: Variant,
    },
    /// Put NVIDIA's word back.
    Undo {
        #[command(flatten)]
        source: Source,
    },
    /// Show the word and its flags, in a source tree or a built module.
    Verify {
        /// Source tree of NVIDIA's open kernel modules.
        #[arg(
            long,
            value_name = "DIR",
            conflicts_with = "module",
            required_unless_present = "module"
        )]
        tree: Option<PathBuf>,
        /// A built module, such as what `modinfo -n nvidia` names.
        #[arg(long, value_name = "FILE")]
        module: Option<PathBuf>,
        /// Accept a version of a known branch that the makers of this patch did not read.
        #[arg(long)]
        untested_version: bool,
    },
}

fn main() -> ExitCode {
    match run(&Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidegate-driver-patch: {error:#}");
            ExitCode::from(1)
        }
    }
}

fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Apply { source, variant } => {
            let mut tree = open(source)?;
            let before = tree.word;
            if tree.apply(*variant)? {
                changed(&tree, before);
            } else {
                println!("nothing to do: variant {variant} stands there already");
            }
            Ok(())
        }
        Command::Undo { source } => {
            let mut tree = open(source)?;
            let before = tree.word;
            if tree.undo()? {
                changed(&tree, before);
            } else {
                println!("nothing to do: the word is NVIDIA's own");
            }
            Ok(())
        }
        Command::Verify {
            tree: Some(tree),
            untested_version,
            ..
        } => verify_tree(&Tree::open(tree, *untested_version)?),
        Command::Verify { module, .. } => verify_module(module.as_deref().unwrap_or("".as_ref())),
    }
}

fn open(source: &Source) -> anyhow::Result<Tree> {
    let tree = Tree::open(&source.tree, source.untested_version)?;
    print_where(&tree);
    Ok(tree)
}

fn print_where(tree: &Tree) {
    println!(
        "driver {} (branch {}), {}:{}",
        tree.version,
        tree.branch.number,
        tree.path.display(),
        tree.line
    );
}

fn print_word(label: &str, branch: &Branch, word: u32) {
    println!("  {label:<8} {word:#7x}  {}", branch.decoded(word));
}

fn changed(tree: &Tree, before: u32) {
    print_word("before", tree.branch, before);
    print_word("after", tree.branch, tree.word);
    println!("now build, sign and load the modules: driver-patch/README.md");
}

fn verify_tree(tree: &Tree) -> anyhow::Result<()> {
    print_where(tree);
    print_word("now", tree.branch, tree.word);
    print_word("NVIDIA's", tree.branch, tree.branch.old);
    for variant in [Variant::A, Variant::B] {
        let label = format!("with {variant}");
        print_word(&label, tree.branch, tree.branch.patched(variant));
    }
    println!("{}", tree.state());
    Ok(())
}

fn verify_module(path: &std::path::Path) -> anyhow::Result<()> {
    let module = module::read(path).with_context(|| path.display().to_string())?;
    let Some(version) = module.version else {
        anyhow::bail!(
            "{}: the word is {:#x}, but the file says no version to read it by",
            path.display(),
            module.flags
        );
    };
    let licence = module.license.as_deref().unwrap_or("unknown");
    println!("{}: driver {version}, licence {licence}", path.display());
    let Some(branch) = branches::of_version(&version) else {
        anyhow::bail!(
            "the word is {:#x}, but {version} is of no known branch",
            module.flags
        );
    };
    print_word("now", branch, module.flags);
    print_word("NVIDIA's", branch, branch.old);
    println!("{}", branch.state(module.flags));
    Ok(())
}
