// The headers in two files of one program: no symbol is defined twice. Compiled with strict warnings.
#include "bray/async_client.hpp"
#include "bray/client.hpp"
#include "bray/message.hpp"

std::string ask(bray::Client& client);

int main(int argc, char**) {
  if (argc < 2) return 0;
  bray::AsyncClient other("127.0.0.1", 1);
  bray::Client client("127.0.0.1", 1);
  return ask(client).empty() ? 1 : 0;
}
