//! What `TIDEGATE_BACKGROUND` says is understood by the plugin, and by the library; or a line says what is wrong with it.

use std::process::Command;

/// Runs a program of Python's with the plugin and the library, and gives what it prints.
fn python(program: &str) -> String {
    let engines = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let here = std::env::current_exe().expect("a program");
    let library = here.with_file_name("libtidegate_coserve.so");
    let run = Command::new("python3")
        .args(["-B", "-c", program])
        .env("PYTHONPATH", engines)
        .env("TIDEGATE_COSERVE_LIBRARY", library)
        .output()
        .expect("python3");
    assert!(run.status.success(), "{run:?}");
    String::from_utf8(run.stdout).expect("text")
}

/// P-TRAINER-17: what the variable says is understood, or refused.
#[test]
fn a_promise_is_understood_or_refused_by_name() {
    let program = "
from tidegate_engines.vllm.background import promised
def show(text):
    try:
        c = promised.parse(text)
        print(c.kind, c.ttft_share, c.tpot_share, c.ttft_ns, c.tpot_ns, c.late_permille)
    except ValueError as error:
        print(error)
for text in ('tpot=+5%,ttft=+5%', 'ttft=+12.5%, tpot=+0.25%', 'tpot=20ms,ttft=0.5s', 'tpot=+5%', 'tpot=+5%,ttft=500ms',
             'tpot=5%,ttft=+5%', 'tpot=0ms,ttft=1s', 'tpot=+5%,tpot=+5%', 'share=3', 'tpot=+5%,ttft=', ''):
    show(text)
";
    let wanted = "\
1 500 500 0 0 0
1 1250 25 0 0 0
2 0 0 500000000 20000000 10
ttft is missing
tpot and ttft are to be two shares, or two times
tpot=5% is neither a share such as +5% nor a time such as 20ms
tpot=0ms is neither a share such as +5% nor a time such as 20ms
tpot is given twice
'share=3' is not one of tpot=..., ttft=...
ttft= is neither a share such as +5% nor a time such as 20ms
'' is not one of tpot=..., ttft=...
";
    assert_eq!(python(program), wanted);
}

/// P-TRAINER-19: what `TIDEGATE_TUNE` says is understood by the library, or refused by key.
#[test]
fn a_training_is_understood_or_refused_by_key() {
    let program = "
from tidegate_engines import coserve_abi
from tidegate_engines.vllm.coserve import promised
def show(text):
    try:
        t = promised.parse(text)
        coserve_abi.Coserve(t.config).trains(t.rules)
        c, r = t.config, t.rules
        print(c.kind, c.ttft_ns, c.tpot_share, c.margin_permille, r.chunk, r.activations, r.strict, t.socket)
    except ValueError as error:
        print(error)
for text in ('tpot=20ms,ttft=500ms', 'tpot=+5%, ttft=+5%, margin=2.5%, chunk=64, strict=yes, socket=/run/a',
             'tpot=20ms,ttft=1s,margin=0%,activations=100,strict=no', 'tpot=20ms', 'tpot=20ms,ttft=1s,chunk=0',
             'tpot=20ms,ttft=1s,margin=5', 'tpot=20ms,ttft=1s,strict=1', 'tpot=20ms,ttft=1s,socket=here',
             'tpot=20ms,ttft=1s,chunk=9000', 'tpot=20ms,ttft=1s,chunk=8,chunk=8', 'tpot=20ms,ttft=1s,rank=8',
             'tpot=20ms,ttft=1s,socket=/' + 'x' * 100, 'tpot=20ms,ttft=1s,activations=99999999'):
    show(text)
";
    let wanted = "\
2 500000000 0 50 0 8192 0 None
1 0 500 25 64 8192 1 /run/a
2 1000000000 0 0 0 100 0 None
ttft is missing
chunk=0 is not a number of tokens from 1 to 16777216
margin=5 is not a share such as 5%
strict=1 is neither yes nor no
socket=here is not an absolute path
chunk=9000 is more than activations=8192
chunk is given twice
'rank=8' is not one of tpot=..., ttft=..., margin=..., activations=..., chunk=..., strict=..., socket=...
";
    let found = python(program);
    let (lines, rest) = found.split_at(wanted.len().min(found.len()));
    assert_eq!(lines, wanted);
    let rest: Vec<&str> = rest.lines().collect();
    assert!(rest[0].ends_with("is longer than the 100 bytes of a socket's path"));
    assert_eq!(
        rest[1..],
        ["activations=99999999 is not a number of tokens from 1 to 16777216"]
    );
}

/// P-TRAINER-17: a Python without vLLM, a promise that nobody understands and a missing library are a line each.
#[test]
fn what_is_missing_is_one_line_and_no_error() {
    let program = "
import logging, os, sys
sys.stderr = sys.stdout
logging.basicConfig(stream=sys.stdout, format='%(message)s')
from tidegate_engines import coserve_abi
from tidegate_engines.vllm import register
os.environ.pop('TIDEGATE_BACKGROUND', None)
os.environ.pop('TIDEGATE_TUNE', None)
register()
loaded = [name for name in sys.modules if 'background' in name or 'vllm.coserve' in name]
assert not loaded, f'loaded without the variable: {loaded}'
os.environ['TIDEGATE_TUNE'] = 'tpot=20ms,ttft=500ms'
sys.modules['torch'] = None
register()
del os.environ['TIDEGATE_TUNE']
os.environ['TIDEGATE_BACKGROUND'] = 'tpot=fast'
register()
register()
os.environ['TIDEGATE_BACKGROUND'] = 'tpot=+5%,ttft=+5%'
sys.modules['vllm'] = None
register()
coserve_abi.Coserve(coserve_abi.Config(kind=1, ttft_share=500, tpot_share=500))
os.environ['TIDEGATE_COSERVE_LIBRARY'] = '/nowhere'
try:
    coserve_abi.load()
except coserve_abi.CoserveError as error:
    print(error)
";
    let said = python(program);
    let lines: Vec<&str> = said.lines().collect();
    let refused =
        "Tidegate serves no requests in the background, and those with a priority are vLLM's: ";
    let trains_nothing = "Tidegate trains nothing in this engine: ModuleNotFoundError: ";
    assert!(lines[0].starts_with(trains_nothing), "{said}");
    let lines = &lines[1..];
    assert_eq!(
        lines[0],
        format!(
            "{refused}TIDEGATE_BACKGROUND: tpot=fast is neither a share such as +5% nor a time such as 20ms"
        )
    );
    assert!(
        lines[1].starts_with(&format!("{refused}ModuleNotFoundError")),
        "{said}"
    );
    let missing =
        "libtidegate_coserve.so is in none of /nowhere (set TIDEGATE_COSERVE_LIBRARY to its path)";
    assert_eq!(lines[2..], [missing]);
}

/// P-TRAINER-16: the library hears of each step once, and how long who came back waited for the steps under way. A step
/// that holds nothing was never under way.
#[test]
fn each_step_is_said_and_none_is_lost_behind_an_empty_one() {
    let program = "
from types import SimpleNamespace as Is
from tidegate_engines.vllm.background import told
said = []
class Library:
    def rides(self, ask): return None
    def rode(self, step): said.append(('rode', step.now_ns, step.took_ns, step.users, step.users_prompt, step.rows))
    def see(self, *seen): said.append(('see', *seen))
now = 0
told.time = Is(time=lambda: float(now))
this = told.Told(Library(), lambda: now * 10**9)
def step(total, users=0, rows=0):
    this.rides()
    this.ask.users = users
    output = Is(total_num_scheduled_tokens=total)
    this.scheduled(output, rows, 0)
    return output
first = step(3, rows=3)
assert this.ask.under_way == 0
second = step(2, rows=2)
assert this.ask.under_way == 1
empty = step(0)
assert this.ask.under_way == 2
this.ended(empty, {})
now = 7
this.ended(first, {})
this.came(Is(request_id='a', arrival_time=3.0))
user = step(5, rows=0)
now = 15
this.ended(second, {})
now = 19
this.ended(user, {})
for line in said:
    print(*(word if isinstance(word, str) or word < 10**9 else word // 10**9 for word in line))
";
    let wanted = "\
rode 7 7 0 0 3
see 1 1 0 0 7
rode 15 8 0 0 2
see 4 0 7 12 19
rode 19 4 0 5 0
";
    assert_eq!(python(program), wanted);
}
