// Package bray calls the services of a bray server over its binary TCP protocol.
//
//	client, err := bray.Dial(ctx, "127.0.0.1:7300", bray.Options{})
//	reply, err := client.Start(ctx, "game-1", nil)
//	action, err := client.Tick(ctx, "game-1", observation)
//	reply, err = client.End(ctx, "game-1", nil)
package bray

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
	"unicode/utf8"
)

// Options are the settings of a client; the zero value is good.
type Options struct {
	Token          string        // bearer token, sent first on each connection; empty: none
	ConnectTimeout time.Duration // for connecting and the answer to a ping; 0: 5 s
	Timeout        time.Duration // for a request whose context has no deadline; 0: 60 s
	MaxReplyBytes  int           // a longer reply ends the connection; 0: 64 MiB
}

// Client calls a server over one connection. Goroutines may share it: their requests are answered side
// by side. One request of a session is under way at a time.
//
// A connection that was lost is made anew by the next request. Nothing that may have been executed is
// sent twice. Sessions are bound to their connection: after a new one the server answers
// unknown_session, and they must be started again.
//
// A request that is late returns the context's error and leaves the connection with its other sessions
// alone; its late answer is dropped. If the server answers no ping either, the connection is given up.
type Client struct {
	address string
	options Options

	dialing chan struct{} // holds one token: who has it may connect
	mutex   sync.Mutex
	current *connection
	closed  bool
}

// Dial connects. It returns a *ConnectionError (unreachable) or a *ServiceError (unauthorized).
func Dial(ctx context.Context, address string, options Options) (*Client, error) {
	if options.ConnectTimeout <= 0 {
		options.ConnectTimeout = 5 * time.Second
	}
	if options.Timeout <= 0 {
		options.Timeout = time.Minute
	}
	if options.MaxReplyBytes <= 0 {
		options.MaxReplyBytes = 64 << 20
	}
	client := &Client{address: address, options: options, dialing: make(chan struct{}, 1)}
	if _, err := client.connection(ctx); err != nil {
		return nil, err
	}
	return client, nil
}

// Start starts a session and returns the reply.
//
// Errors are a *ServiceError as the server says it, a *ConnectionError, or the context's.
func (c *Client) Start(ctx context.Context, session string, body []byte) ([]byte, error) {
	return c.request(ctx, KindStart, session, body)
}

// Tick sends one tick of a session and returns the reply; errors as of Start.
func (c *Client) Tick(ctx context.Context, session string, body []byte) ([]byte, error) {
	return c.request(ctx, KindTick, session, body)
}

// End ends a session and returns the reply; errors as of Start.
func (c *Client) End(ctx context.Context, session string, body []byte) ([]byte, error) {
	return c.request(ctx, KindEnd, session, body)
}

// Call calls a stateless service; errors as of Start.
func (c *Client) Call(ctx context.Context, body []byte) ([]byte, error) {
	return c.request(ctx, KindCall, "", body)
}

// Ping asks whether the server is there; errors as of Start.
func (c *Client) Ping(ctx context.Context) error {
	_, err := c.request(ctx, KindPing, "", nil)
	return err
}

// Close closes the connection; the server aborts the sessions that were started on it.
func (c *Client) Close() error {
	c.mutex.Lock()
	c.closed = true
	current := c.current
	c.mutex.Unlock()
	if current != nil {
		current.lost("the client was closed")
	}
	return nil
}

func (c *Client) request(ctx context.Context, kind Kind, session string, body []byte) ([]byte, error) {
	if err := check(session, body); err != nil {
		return nil, err
	}
	if _, has := ctx.Deadline(); !has {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.options.Timeout)
		defer cancel()
	}
	for ctx.Err() == nil {
		connection, err := c.connection(ctx)
		if err != nil {
			return nil, err
		}
		reply, err := connection.request(ctx, kind, session, body)
		if errors.Is(err, context.DeadlineExceeded) {
			connection.probe(c.options.ConnectTimeout)
		}
		if !errors.Is(err, errNotSent) {
			return reply, err
		}
	}
	return nil, ctx.Err()
}

func check(session string, body []byte) error {
	if len(session) > maxSessionBytes {
		return &ServiceError{"bad_session", "a session id has at most 65535 bytes"}
	}
	if !utf8.ValidString(session) {
		return &ServiceError{"bad_session", "the session id is not UTF-8"}
	}
	if int64(len(body)) > maxBodyBytes {
		return &ServiceError{"body_too_large", "a body has at most 4 GiB"}
	}
	return nil
}

// alive returns the connection, nil if there is none.
func (c *Client) alive() (*connection, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	if c.current != nil {
		select {
		case <-c.current.gone:
			c.current = nil
		default:
		}
	}
	return c.current, nil
}

// connection returns the connection, made anew if it is gone.
func (c *Client) connection(ctx context.Context) (*connection, error) {
	if current, err := c.alive(); current != nil || err != nil {
		return current, err
	}
	select {
	case c.dialing <- struct{}{}:
		defer func() { <-c.dialing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if current, err := c.alive(); current != nil || err != nil {
		return current, err // another goroutine has connected meanwhile
	}
	made, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.closed {
		made.lost("the client was closed")
		return nil, ErrClosed
	}
	c.current = made
	return made, nil
}

// connect makes a connection and greets: with the token, or with a ping.
func (c *Client) connect(outer context.Context) (*connection, error) {
	ctx, cancel := context.WithTimeout(outer, c.options.ConnectTimeout)
	defer cancel()
	socket, err := (&net.Dialer{}).DialContext(ctx, "tcp", c.address) // sets TCP_NODELAY
	if err != nil {
		return nil, c.unreachable(outer, err)
	}
	made := newConnection(socket, c.options.MaxReplyBytes)
	kind := KindPing
	if c.options.Token != "" {
		kind = KindHello
	}
	_, err = made.request(ctx, kind, "", []byte(c.options.Token))
	if err == nil {
		return made, nil
	}
	made.lost("no greeting")
	var refused *ServiceError
	var broken *ConnectionError
	if errors.As(err, &refused) || (errors.As(err, &broken) && broken.Code != CodeConnectionLost) {
		return nil, err
	}
	return nil, c.unreachable(outer, err)
}

func (c *Client) unreachable(outer context.Context, err error) error {
	if outer.Err() != nil {
		return outer.Err()
	}
	return &ConnectionError{CodeUnreachable, fmt.Sprintf("%s: %v", c.address, err)}
}
