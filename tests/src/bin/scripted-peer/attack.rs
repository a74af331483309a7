//! What only a hostile process does.

use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::io::{Result, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use tidegate_abi::page::{BYTES, Page};
use tidegate_agent::sys;
use tidegate_proto::greeting::{Greeting, LEN};
use tidegate_proto::v1;
use tidegate_proto::v1::rm_event::Event;

/// Opens up to `count` connections.
pub fn hold(socket: &Path, count: usize) -> Vec<UnixStream> {
    let open = |_| UnixStream::connect(socket).ok();
    (0..count).map_while(open).collect()
}

/// Asks for status without end, on so many connections and so many times at once on each.
pub async fn readers(socket: &Path, connections: usize, calls: usize) -> Result<()> {
    for _ in 0..connections {
        let stream = UnixStream::connect(socket)?;
        stream.set_nonblocking(true)?;
        let mut once = Some(tokio::net::UnixStream::from_std(stream)?);
        let connector = tower::service_fn(move |_: tonic::transport::Uri| {
            let stream = once.take();
            async move {
                stream
                    .map(hyper_util::rt::TokioIo::new)
                    .ok_or_else(|| std::io::Error::other("used up"))
            }
        });
        let channel = tonic::transport::Endpoint::from_static("http://tidegate.invalid")
            .connect_with_connector(connector)
            .await
            .map_err(std::io::Error::other)?;
        for _ in 0..calls {
            let mut client = v1::node_client::NodeClient::new(channel.clone());
            tokio::spawn(async move {
                loop {
                    let _ = client.get_status(v1::GetStatusRequest::default()).await;
                    // One that is refused at once would else keep its siblings from running.
                    tokio::task::yield_now().await;
                }
            });
        }
    }
    Ok(())
}

/// Channels on GPU 0 that no driver ever made.
pub fn channels(client: u32, count: u32) -> Vec<Event> {
    let channel = |channel| {
        Event::ChannelUp(v1::ChannelUp {
            client,
            channel,
            tsg: channel,
            engine: v1::Engine::Graphics.into(),
            device_instance: 0,
            ..v1::ChannelUp::default()
        })
    };
    (0..count).map(|at| channel(0x7000_0000 + at)).collect()
}

/// That clients of others are its own, with a channel each, and that they are gone.
pub fn claims(from: u32, count: u32) -> Vec<Event> {
    let claim = |client| {
        let mut events = vec![Event::ClientUp(v1::ClientUp { client })];
        events.extend(channels(client, 1));
        events.push(Event::ClientDown(v1::ClientDown { client }));
        events
    };
    (from..from + count).flat_map(claim).collect()
}

/// A cache, laid out otherwise than the one before it.
pub fn cache(kv: u32, stripes: u32) -> v1::client_event::Event {
    v1::client_event::Event::KvRegistered(v1::KvRegistered {
        // As many as a session may have, again and again.
        kv: kv % 16,
        handle_bytes: 2 << 20,
        block_count: 1 << 20,
        first_block: (0..stripes).map(|nth| nth * (1 + kv % 7)).collect(),
        blocks: vec![1; stripes as usize],
        handles: vec![1; stripes as usize],
        backed: vec![0xff; stripes.div_ceil(8) as usize],
        ..v1::KvRegistered::default()
    })
}

/// A cache of so many stripes of 2 MiB, all of it there.
pub fn whole(stripes: u32) -> v1::client_event::Event {
    let ones = || vec![1; stripes as usize];
    let mut backed = vec![0xff; stripes as usize / 8];
    if !stripes.is_multiple_of(8) {
        backed.push((1 << (stripes % 8)) - 1);
    }
    v1::client_event::Event::KvRegistered(v1::KvRegistered {
        kv: 1,
        world: 1,
        handle_bytes: 2 << 20,
        block_count: stripes,
        first_block: (0..stripes).collect(),
        blocks: ones(),
        handles: ones(),
        backed,
        ..v1::KvRegistered::default()
    })
}

/// So many open files, of no use.
pub fn table(count: u64) -> Result<Vec<File>> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    (0..count).map(|_| File::open("/dev/null")).collect()
}

/// The ends of clients that never were.
pub fn nothings(count: u32) -> Vec<Event> {
    let gone = |client| Event::ClientDown(v1::ClientDown { client });
    (0..count).map(gone).collect()
}

/// A socket with more than its other end takes: who closes it last waits for a minute.
pub fn lingering() -> Result<OwnedFd> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut stream = TcpStream::connect(listener.local_addr()?)?;
    stream.set_nonblocking(true)?;
    while stream.write(&[0; 1 << 16]).is_ok() {}
    let minute = libc::linger {
        l_onoff: 1,
        l_linger: 60,
    };
    // SAFETY: the option takes this struct, which lives until the call returns.
    let set = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            std::ptr::from_ref(&minute).cast(),
            size_of::<libc::linger>() as libc::socklen_t,
        )
    };
    if set != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // Its other end stays as it is for as long as this process lives.
    std::mem::forget(listener);
    Ok(stream.into())
}

/// Drops such a socket, which another process may have closed by now: then this is its last name, and its close waits.
fn let_go(file: OwnedFd) {
    std::thread::spawn(move || drop(file));
}

/// Opens and locks every file of the agent's directory that this process may open.
pub fn lock(run_dir: &Path) -> Result<Vec<Flock<File>>> {
    let files = std::fs::read_dir(run_dir)?.flatten();
    let open = files.filter_map(|entry| File::open(entry.path()).ok());
    Ok(open
        .filter_map(|file| Flock::lock(file, FlockArg::LockExclusiveNonblock).ok())
        .collect())
}

/// Takes the memory of its page away, by each of the ways that there are; how many worked.
pub fn punch(page: &Page, file: &OwnedFd) -> usize {
    use nix::fcntl::{FallocateFlags, fallocate};
    let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let punched = fallocate(file, flags, 0, BYTES as i64).is_ok();
    let at = std::ptr::from_ref(page).cast_mut().cast();
    // SAFETY: what stays is a page of zeros, of which all words are atomics.
    let removed = unsafe { libc::madvise(at, BYTES, libc::MADV_REMOVE) } == 0;
    usize::from(punched) + usize::from(removed)
}

/// Passes such a socket with one byte out of band.
fn pass_urgent(stream: &UnixStream) -> Result<()> {
    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
    let file = lingering()?;
    let sent = sendmsg::<()>(
        stream.as_raw_fd(),
        &[std::io::IoSlice::new(b"!")],
        &[ControlMessage::ScmRights(&[file.as_raw_fd()])],
        MsgFlags::MSG_OOB | MsgFlags::MSG_NOSIGNAL,
        None,
    );
    let_go(file);
    sent?;
    Ok(())
}

/// Passes such sockets where none belongs, and keeps no copy: with a greeting and no word after it, behind a greeting,
/// before a call, within one, and out of band. The connections that are still of use.
pub fn linger(run_dir: &Path) -> Result<Vec<UnixStream>> {
    let hook = run_dir.join(tidegate_proto::HOOK_SOCKET);
    let status = run_dir.join(tidegate_proto::STATUS_SOCKET);
    let pass = |stream: &UnixStream, bytes: &[u8]| {
        let file = lingering()?;
        let sent = sys::send_with_descriptors(stream.as_fd(), bytes, &[file.as_fd()]);
        let_go(file);
        sent
    };
    let greeted = || -> Result<UnixStream> {
        let stream = UnixStream::connect(&hook)?;
        sys::receive_with_descriptors(stream.as_fd(), &mut [0; LEN])?;
        Ok(stream)
    };
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let unsaid = greeted()?;
    pass(&unsaid, &Greeting::new(1).encode())?;
    drop(unsaid);
    let behind = greeted()?;
    pass(&behind, &Greeting::new(1).encode())?;
    pass(&behind, preface)?;
    let nonsense = greeted()?;
    pass(&nonsense, b"neither greeting nor call")?;
    let before = UnixStream::connect(&status)?;
    pass(&before, preface)?;
    // Out of band, where no read looks unless it is told to: on connections that stay, and on some that are closed.
    let urgent = [greeted()?, UnixStream::connect(&status)?];
    for stream in urgent
        .iter()
        .chain(&[greeted()?, UnixStream::connect(&status)?])
    {
        pass_urgent(stream)?;
    }
    let mut kept = vec![behind, before];
    kept.extend(urgent);
    Ok(kept)
}

/// Opens so many connections to both sockets that are everybody's, and passes as many files on each as one message takes,
/// none of which belongs there. The connections that could be opened and were not refused at once.
pub fn files(run_dir: &Path, count: usize) -> Result<Vec<UnixStream>> {
    let hook = run_dir.join(tidegate_proto::HOOK_SOCKET);
    let status = run_dir.join(tidegate_proto::STATUS_SOCKET);
    let file = lingering()?;
    let mut held = Vec::new();
    for _ in 0..count {
        for (socket, bytes) in [
            (&hook, &Greeting::new(1).encode()[..]),
            (&status, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        ] {
            let stream = UnixStream::connect(socket)?;
            let many = [file.as_fd(); 253];
            if sys::send_with_descriptors(stream.as_fd(), bytes, &many).is_ok() {
                held.push(stream);
            }
        }
    }
    let_go(file);
    Ok(held)
}
