//! HTTP/2 as the sockets speak it: how much a connection may have under way.

use tonic::transport::Server;

/// Calls of one connection at a time: a library makes one.
const CALLS: u32 = 16;
const LIBRARY_CALLS: u32 = 2;
/// Bytes of headers of a call.
const HEADERS: u32 = 16 * 1_024;
const LIBRARY_HEADERS: u32 = 4 * 1_024;
/// Bytes that may come on a call, and on a connection, before they are taken.
const WINDOW: u32 = 65_535;

fn server(calls: u32, headers: u32) -> Server {
    Server::builder()
        .concurrency_limit_per_connection(calls as usize)
        .max_concurrent_streams(calls)
        .http2_max_header_list_size(headers)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
}

/// Of the socket on which libraries attach.
#[must_use]
pub fn for_libraries() -> Server {
    server(LIBRARY_CALLS, LIBRARY_HEADERS)
}

/// Of the sockets that answer.
#[must_use]
pub fn for_readers() -> Server {
    server(CALLS, HEADERS)
}
