/* tidegate.h in a program without the library: every function does nothing and says so. Prints "ok". */
#include "../../interposer/include/tidegate.h"
#include "tg.h"

int main(void)
{
    struct tg_api tg;
    size_t none = 0;
    uint64_t seq = 7;
    uint32_t word = 7;
    CHECK(tg_open(&tg) == 0);
    CHECK(tg.attach(0, 0, 1) == -ENOSYS && tg.kv_scope_begin(0, 0) == -ENOSYS && tg.kv_scope_end() == -ENOSYS);
    CHECK(tg.kv_register(0, 0, 0, 0, &word) == -ENOSYS && tg.kv_unregister(0) == -ENOSYS && tg.kv_whole() == -ENOSYS);
    CHECK(tg.poll(0, 0, &none, 0, &none, &seq) == -ENOSYS && tg.ack_withheld(0) == -ENOSYS);
    CHECK(tg.publish_request(0, 0, 0, 0) == -ENOSYS && tg.forget_request(0) == -ENOSYS);
    CHECK(tg.reserve(0, 0, 0, &word) == -ENOSYS && tg.release(0, 0, 0) == -ENOSYS && tg.usage(0, 0) == -ENOSYS);
    CHECK(tg.requests_in_flight(0) == -ENOSYS && tg.expect(0, 0) == -ENOSYS);
    CHECK(none == 0 && seq == 7 && word == 7);
    puts("ok");
    return 0;
}
