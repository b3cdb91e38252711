// Frames as bytes. Reads vectors from standard input, one a line, "-" for no bytes:
//
//     frame KIND REQUEST_ID SESSION_HEX BODY_HEX FRAME_HEX
//     refused CODE FRAME_HEX
#include "bray/frames.hpp"

#include <iostream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "bray/detail/json.hpp"
#include "check.hpp"

namespace {

std::string from_hex(const std::string& hex) {
  std::string bytes;
  if (hex == "-") return bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

bray::FrameParser small_parser() { return bray::FrameParser(1000, 100); }

void check_frame(std::istringstream& line) {
  int kind = 0;
  std::uint32_t id = 0;
  std::string session, body, hex;
  line >> kind >> id >> session >> body >> hex;
  const std::string bytes = from_hex(hex);
  CHECK(bray::pack_frame(static_cast<bray::Kind>(kind), id, from_hex(session), from_hex(body)) ==
        bytes);
  for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
    bray::FrameParser parser = small_parser();
    bray::Frame frame;
    parser.feed(std::string_view(bytes).substr(0, cut));
    const bool is_early = parser.next(frame);
    CHECK_EQUAL(is_early, cut == bytes.size());
    if (!is_early) {
      parser.feed(std::string_view(bytes).substr(cut));
      CHECK(parser.next(frame));
    }
    CHECK_EQUAL(static_cast<int>(frame.kind), kind);
    CHECK_EQUAL(frame.request_id, id);
    CHECK(frame.session == from_hex(session));
    CHECK(frame.body == from_hex(body));
    CHECK(!parser.next(frame));
    CHECK_EQUAL(parser.pending_bytes(), 0U);
  }
}

void check_refused(std::istringstream& line) {
  std::string code, hex;
  line >> code >> hex;
  bray::FrameParser parser = small_parser();
  bray::Frame frame;
  parser.feed(from_hex(hex));
  CHECK_THROWS(parser.next(frame), bray::FrameError, code);
  CHECK_THROWS(parser.next(frame), bray::ConnectionError, code);
}

void check_vectors() {
  int num_frames = 0;
  int num_refused = 0;
  for (std::string text; std::getline(std::cin, text);) {
    std::istringstream line(text);
    std::string what;
    line >> what;
    if (what == "frame") {
      ++num_frames;
      check_frame(line);
    } else {
      ++num_refused;
      check_refused(line);
    }
  }
  CHECK(num_frames >= 8);
  CHECK(num_refused >= 5);
}

void check_many_frames_byte_by_byte() {
  std::string stream;
  for (std::uint32_t i = 0; i < 50; ++i) {
    stream += bray::pack_frame(bray::Kind::tick, i, std::to_string(i), std::string(i, 'x'));
  }
  bray::FrameParser parser = small_parser();
  std::uint32_t next = 0;
  for (const char byte : stream) {
    parser.feed(std::string_view(&byte, 1));
    for (bray::Frame frame; parser.next(frame); ++next) {
      CHECK_EQUAL(frame.request_id, next);
      CHECK(frame.session == std::to_string(next) && frame.body == std::string(next, 'x'));
    }
  }
  CHECK_EQUAL(next, 50U);
}

void check_what_does_not_fit() {
  CHECK_THROWS(bray::pack_frame(bray::Kind::tick, 1, std::string(65536, 'x'), ""),
               bray::FrameError, "bad_session");
}

void check_utf8() {
  for (const char* good : {"", "a", "s\xC3\xA4ule", "\xE2\x82\xAC", "\xF0\x9F\x8E\xAE"}) {
    CHECK(bray::is_utf8(good));
  }
  for (const char* bad : {"\xFF", "\xC3", "\x80", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80",
                          "\xF4\x90\x80\x80", "\xF0\x8F\xBF\xBF", "\xE2\x82", "\xC3\x28"}) {
    CHECK(!bray::is_utf8(bad));
  }
}

void check_error_body(const char* json, const std::string& code, const std::string& message) {
  const bray::detail::ErrorBody got = bray::detail::read_error_body(json);
  CHECK_EQUAL(got.code, code);
  if (code != "bad_frame") CHECK_EQUAL(got.message, message);
}

void check_error_bodies() {
  check_error_body(R"({"code": "busy", "message": "wait"})", "busy", "wait");
  check_error_body(R"( {"message":"m","more":[1,-2.5e3,{"code":"no"},null,[]],"code":"c"} )", "c",
                   "m");
  check_error_body(R"({"code": "c", "message": "\"\\\/\b\f\n\r\t\u0041"})", "c",
                   "\"\\/\b\f\n\r\tA");
  check_error_body(R"({"code": "c", "message": "s\u00e4ule \u20ac \ud83c\udfae \ud83c! \udfae"})",
                   "c", "s\xC3\xA4ule \xE2\x82\xAC \xF0\x9F\x8E\xAE \xEF\xBF\xBD! \xEF\xBF\xBD");
  check_error_body("{\"code\": \"c\", \"message\": \"s\xC3\xA4ule\"}", "c", "s\xC3\xA4ule");
  const std::string deep = "{\"x\": " + std::string(100000, '[');
  for (const char* bad :
       {"", "x", "[]", "{}", "null", "\xFF", R"({"code": "c"})", R"({"code": 1, "message": "m"})",
        R"({"code": "c", "message": "m"} x)", R"({"code": "c", "message": "m")",
        R"({"code": "c", "message": "\u12)", R"({"code": "c", "message": "\ud83c\u12)",
        R"({"code": "c", "message": "\x"})", R"({"code" "c"})", R"({"code": "c", "message": "m\)",
        "{\"code\": \"c\", \"message\": \"\n\"}", deep.c_str()}) {
    check_error_body(bad, "bad_frame", "");
  }
}

}  // namespace

int main() {
  check_vectors();
  check_many_frames_byte_by_byte();
  check_what_does_not_fit();
  check_utf8();
  check_error_bodies();
}
