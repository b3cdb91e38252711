package bray

import (
	"bufio"
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	receiveBytes = 64 << 10
	lastWords    = time.Second // for the server to say why it closed
)

// result is what a request gets: a body or an error.
type result struct {
	body []byte
	err  error
}

// call is a request without a reply.
type call struct {
	kind Kind
	done chan result // with room for one, so that nobody waits who delivers
}

// connection is one TCP connection. It has a goroutine that reads and one that writes.
type connection struct {
	socket  net.Conn
	maxBody int
	frames  chan outgoing
	gone    chan struct{} // closed with the connection

	received atomic.Uint64 // frames
	probing  atomic.Bool

	mutex  sync.Mutex
	calls  map[uint32]*call
	lastID uint32
	err    error // why it is gone
}

// outgoing is a frame for the writer, which takes it off the channel before it writes.
type outgoing struct {
	id    uint32
	bytes []byte
}

func newConnection(socket net.Conn, maxBody int) *connection {
	c := &connection{
		socket:  socket,
		maxBody: maxBody,
		frames:  make(chan outgoing), // no room: what was not taken was not sent
		gone:    make(chan struct{}),
		calls:   map[uint32]*call{},
	}
	go c.read()
	go c.write()
	return c
}

// errNotSent says that a connection was gone before a byte of the request was written.
var errNotSent = errors.New("not sent")

// request sends one frame and waits for its answer.
func (c *connection) request(ctx context.Context, kind Kind, session string, body []byte) ([]byte, error) {
	id, waiting, err := c.register(kind)
	if err != nil {
		return nil, err
	}
	frame := appendFrame(make([]byte, 0, headerBytes+len(session)+len(body)),
		Frame{Kind: kind, RequestID: id, Session: session, Body: body})
	select {
	case c.frames <- outgoing{id, frame}:
	case <-c.gone:
		c.forget(id)
		return nil, errNotSent
	case <-ctx.Done():
		c.forget(id)
		return nil, ctx.Err()
	}
	select {
	case got := <-waiting.done:
		return got.body, got.err
	case <-ctx.Done():
		return nil, ctx.Err() // it stays registered: its late answer is dropped
	}
}

func (c *connection) register(kind Kind) (uint32, *call, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.err != nil {
		return 0, nil, errNotSent
	}
	for {
		c.lastID++
		if _, taken := c.calls[c.lastID]; c.lastID != 0 && !taken { // 0 is for what has no request
			break
		}
	}
	made := &call{kind, make(chan result, 1)}
	c.calls[c.lastID] = made
	return c.lastID, made, nil
}

func (c *connection) forget(id uint32) *call {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	found := c.calls[id]
	delete(c.calls, id)
	return found
}

// lose closes the connection and fails what waits on it; only the first reason counts.
func (c *connection) lose(err error) {
	c.mutex.Lock()
	if c.err != nil {
		c.mutex.Unlock()
		return
	}
	c.err = err
	calls := c.calls
	c.calls = map[uint32]*call{}
	c.mutex.Unlock()
	close(c.gone)
	c.socket.Close()
	for _, waiting := range calls {
		waiting.done <- result{err: err}
	}
}

func (c *connection) lost(message string) {
	c.lose(&ConnectionError{CodeConnectionLost, c.socket.RemoteAddr().String() + ": " + message})
}

// write gathers what is there into one write: many small requests cost one system call.
func (c *connection) write() {
	buffer := bufio.NewWriterSize(c.socket, receiveBytes)
	for {
		select {
		case frame := <-c.frames:
			if _, err := buffer.Write(frame.bytes); err != nil {
				c.awaitLastWords()
				return
			}
		case <-c.gone:
			return
		}
		for more := true; more; {
			select {
			case frame := <-c.frames:
				if _, err := buffer.Write(frame.bytes); err != nil {
					c.awaitLastWords()
					return
				}
			default:
				more = false
			}
		}
		if buffer.Flush() != nil {
			c.awaitLastWords()
			return
		}
	}
}

// awaitLastWords leaves it to the reader to lose the connection: the server may have said why.
func (c *connection) awaitLastWords() {
	c.socket.SetReadDeadline(time.Now().Add(lastWords))
}

// probe finds out, after a request was late, whether the server answers anything at all; if not, the
// connection is lost.
func (c *connection) probe(timeout time.Duration) {
	if !c.probing.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer c.probing.Store(false)
		before := c.received.Load()
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		_, err := c.request(ctx, KindPing, "", nil)
		if errors.Is(err, context.DeadlineExceeded) && c.received.Load() == before {
			c.lost("no answer to a ping in time")
		}
	}()
}

func (c *connection) read() {
	buffer := bufio.NewReaderSize(c.socket, receiveBytes)
	for {
		frame, err := readFrame(buffer, c.maxBody, maxSessionBytes)
		var bad *FrameError
		switch {
		case errors.As(err, &bad):
			c.lose(&ConnectionError{bad.Code, c.socket.RemoteAddr().String() + ": " + bad.Message})
			return
		case err != nil:
			c.lost(err.Error())
			return
		}
		c.received.Add(1)
		if !c.dispatch(frame) {
			return
		}
	}
}

// dispatch hands an answer to who waits for it; false if the connection is of no use any more.
func (c *connection) dispatch(frame Frame) bool {
	waiting := c.forget(frame.RequestID)
	switch frame.Kind {
	case KindError:
		said := parseError(frame.Body)
		if waiting != nil {
			waiting.done <- result{err: said}
		}
		if waiting == nil || closesConnection(said.Code) {
			c.lost("the server closed it: " + said.Error())
			return false
		}
		return true
	case KindReply, KindPong:
		if waiting != nil && (frame.Kind == KindPong) == (waiting.kind == KindPing) {
			waiting.done <- result{body: frame.Body}
			return true
		}
	}
	bad := &ConnectionError{CodeBadFrame, c.socket.RemoteAddr().String() + ": an answer to no request"}
	if waiting != nil {
		waiting.done <- result{err: bad}
	}
	c.lose(bad)
	return false
}

// closesConnection tells whether the server closes the connection after this error.
func closesConnection(code string) bool {
	return code == "bad_frame" || code == "body_too_large" || code == "unauthorized"
}
